"""Words whose exchange changes an answer, and words whose exchange does not. Data only.

Opposites: either word of a pair against the other. Kinds: any two members of one kind exclude each other (a question
about red is not a question about blue). Synonyms: members of one group stand for each other; `COUNTERPARTS` has
those of `thesaurus.txt` too, chosen by hand from WordNet (`cache.training.thesaurus`). All are compared as stems.
"""

from importlib.resources import files

from policies.reuse.english import bag, stem

_OPPOSITES = """
increase decrease|raise lower|raise reduce|increase reduce|increase lower|grow shrink|rise fall|more less|
more fewer|most least|most fewest|best worst|better worse|good bad|high low|higher lower|highest lowest|max min|
maximum minimum|maximize minimize|big small|bigger smaller|biggest smallest|large small|larger smaller|
largest smallest|long short|longer shorter|longest shortest|tall short|taller shorter|tallest shortest|wide narrow|
thick thin|deep shallow|fast slow|faster slower|fastest slowest|quick slow|early late|earlier later|earliest latest|
old new|older newer|older younger|oldest newest|oldest youngest|old young|ancient modern|hot cold|warm cool|
hotter colder|wet dry|hard soft|hard easy|difficult easy|harder easier|simple complex|light dark|light heavy|
lighter heavier|bright dim|strong weak|stronger weaker|strongest weakest|rich poor|cheap expensive|cheaper pricier|
cheapest priciest|free paid|full empty|open close|open shut|lock unlock|block unblock|start stop|begin end|
begin finish|start end|start finish|enter exit|enter leave|arrive leave|arrive depart|arrival departure|come go|
push pull|on off|up down|upward downward|in out|inside outside|indoor outdoor|inbound outbound|incoming outgoing|
above below|over under|before after|previous next|prior subsequent|past future|first last|initial final|since until|
forward backward|front back|top bottom|left right|north south|east west|northern southern|eastern western|near far|
nearest farthest|add remove|add delete|add subtract|insert remove|insert delete|create delete|create destroy|
make destroy|build demolish|install uninstall|enable disable|activate deactivate|connect disconnect|attach detach|
mount unmount|link unlink|subscribe unsubscribe|follow unfollow|like dislike|like unlike|mute unmute|pin unpin|
hide show|hide unhide|show conceal|archive unarchive|zip unzip|compress decompress|compress extract|encrypt decrypt|
encode decode|serialize deserialize|upload download|upgrade downgrade|import export|push pop|read write|
input output|login logout|signin signout|register unregister|allow forbid|allow deny|allow block|permit forbid|
permit prohibit|accept reject|accept decline|approve reject|approve deny|grant revoke|include exclude|
agree disagree|confirm deny|confirm cancel|accept refuse|win lose|pass fail|succeed fail|success failure|gain lose|
gain loss|profit loss|earn spend|save spend|save delete|buy sell|purchase sell|lend borrow|rent buy|give take|
give receive|send receive|sender receiver|sender recipient|deposit withdraw|deposit withdrawal|credit debit|
asset liability|income expense|revenue cost|supply demand|import produce|advantage disadvantage|pro con|
benefit drawback|benefit risk|strength weakness|positive negative|plus minus|multiply divide|add divide|true false|
right wrong|correct incorrect|yes no|legal illegal|safe dangerous|safe unsafe|healthy unhealthy|public private|
internal external|local remote|local global|online offline|manual automatic|static dynamic|mutable immutable|
synchronous asynchronous|sync async|serial parallel|sequential parallel|wired wireless|analog digital|
physical virtual|real fake|real imaginary|natural artificial|male female|man woman|men women|boy girl|husband wife|
father mother|dad mom|son daughter|brother sister|uncle aunt|king queen|nephew niece|grandfather grandmother|
groom bride|actor actress|waiter waitress|he she|him her|his her|teacher student|employer employee|buyer seller|
landlord tenant|doctor patient|parent child|owner tenant|client server|host guest|master slave|attack defend|
offense defense|war peace|love hate|friend enemy|remember forget|teach learn|question answer|ask answer|
cause effect|cause prevent|cause cure|cause treat|ascend descend|ascending descending|horizontal vertical|
row column|numerator denominator|odd even|singular plural|prefix suffix|uppercase lowercase|upper lower|
capital lowercase|concave convex|clockwise counterclockwise|acid base|solid liquid|domestic international|
domestic foreign|urban rural|day night|sunrise sunset|am pm|morning evening|morning night|summer winter|
beginner expert|beginner advanced|junior senior|wholesale retail|gross net|temporary permanent|optional required|
optional mandatory|mandatory voluntary|active inactive|active passive|visible hidden|visible invisible|alive dead|
birth death|born die|married single|married divorced|marry divorce|hire fire|join leave|join quit|join split|
merge split|combine separate|together apart|same different|similar different|lose find|lost found|hide find|
inhale exhale|expand collapse|expand contract|stretch shrink|freeze melt|freeze unfreeze|boil freeze|heat cool|
pause resume|pause play|play stop|repeat skip|lend return|keep discard|keep return|cancel book|cancel order|
cancel set|cancel schedule|cancel renew|cancel keep|delete keep|delete set|delete add|remove set|stop set|
remove keep|clear set|set unset|delete restore|delete recover|trust distrust|appear disappear|cover uncover|
dress undress|wrap unwrap|pack unpack|load unload|plug unplug|fold unfold|tie untie|do undo|commit rollback|
allocate free|acquire release|sharp blunt|clean dirty|loud quiet|noisy quiet|wake sleep|awake asleep|sit stand|
ask tell|float sink|major minor|majority minority|above beneath|ahead behind|vegan meat|sweet sour|sweet salty|
raw cooked|fresh frozen|legal illicit|guilty innocent|optimist pessimist|introvert extrovert|host visitor|
import manufacture|with without|for against|must may|always never|always sometimes|often rarely|often seldom|
all none|all some|every some|every no|both neither|any none|everyone nobody|everything nothing|everyone someone|
everything something|only also|if unless|because although|because despite|enough necessary|sufficient necessary|
cover exclude|keep drop|keep discard|formal informal|formal casual|raw cooked|acute chronic|gross net|partial full|
partial sole|wild tame|active expired|active inactive|preliminary final|temporary permanent|beginner advanced|
praise criticize|raise cut|hire fire|approve refuse|boil freeze|melt freeze|sweet sour|sweet bitter|loose tight|
sharp blunt|vacant occupied|literal figurative|optional mandatory|optional required|voluntary compulsory|
explicit implicit|
abstract concrete|direct indirect|major minor|upstream downstream|frontend backend|inhale exhale|
common rare|born bury|birth burial|start leave|eligible ineligible|insured uninsured|
sandy rocky|viral bacterial|short detailed|brief detailed|simple detailed|old current|former current|
outdated current|draft final|
"""

_KINDS = {
    "colour": (
        "red blue green yellow orange purple violet pink brown black white grey gray gold silver beige turquoise "
        "cyan magenta maroon navy teal crimson indigo lavender olive"
    ),
    "month": (
        "january february march april june july august september october november december jan feb mar apr jun jul "
        "aug sep sept oct nov dec"
    ),
    "weekday": "monday tuesday wednesday thursday friday saturday sunday weekend weekday",
    "season": "spring summer autumn winter",
    "part of day": "morning afternoon evening night noon midnight midday dawn dusk",
    "period": "daily weekly monthly quarterly yearly annual annually hourly biweekly fortnightly",
    "span": "millisecond microsecond nanosecond second minute hour day week month quarter year decade century",
    "meal": "breakfast lunch dinner brunch supper dessert snack",
    "direction": "north south east west left right up down",
    "family": (
        "mother father brother sister son daughter uncle aunt cousin grandmother grandfather husband wife nephew "
        "niece mom dad grandma grandpa stepmother stepfather baby"
    ),
    "country": (
        "usa america canada mexico brazil argentina chile peru colombia venezuela cuba uk england britain scotland "
        "wales ireland france germany spain portugal italy switzerland austria belgium netherlands holland denmark "
        "sweden norway finland iceland poland czechia hungary romania bulgaria greece turkey russia ukraine china "
        "japan korea taiwan india pakistan bangladesh nepal indonesia malaysia singapore thailand vietnam "
        "philippines australia egypt nigeria kenya ethiopia ghana morocco algeria israel iran iraq syria lebanon "
        "jordan qatar kuwait dubai afghanistan zealand arabia kong"
    ),
    "people": (
        "american canadian mexican brazilian argentinian british english scottish irish french german spanish "
        "portuguese italian swiss austrian belgian dutch danish swedish norwegian finnish czech hungarian romanian "
        "greek turkish russian ukrainian chinese japanese korean indian pakistani indonesian thai vietnamese "
        "australian egyptian nigerian israeli iranian arabic hebrew hindi bengali urdu mandarin cantonese latin "
        "swahili iraqi kuwaiti syrian lebanese algerian moroccan kenyan ethiopian chilean peruvian colombian "
        "venezuelan cuban bulgarian malaysian filipino philippine bangladeshi welsh european asian african"
    ),
    "city": (
        "london paris berlin madrid rome vienna amsterdam brussels lisbon dublin oslo stockholm copenhagen helsinki "
        "warsaw prague budapest athens moscow istanbul tokyo osaka kyoto beijing shanghai seoul delhi mumbai "
        "bangalore chennai sydney melbourne toronto vancouver montreal boston chicago houston dallas austin denver "
        "seattle miami atlanta philadelphia phoenix detroit california texas florida ohio michigan virginia georgia "
        "oregon munich hamburg frankfurt milan venice florence barcelona manchester edinburgh glasgow cairo lagos "
        "nairobi bangkok jakarta manila hanoi zurich geneva lyon naples brooklyn manhattan york angeles francisco "
        "diego vegas"
    ),
    "continent": "africa asia europe antarctica oceania",
    "currency": (
        "dollar euro pound yen rupee yuan franc peso ruble krona usd eur gbp jpy inr cny chf bitcoin ethereum"
    ),
    "area": "acre hectare ha",
    "power": "watt kilowatt megawatt gigawatt kwh mwh gwh",
    "electric": "ohm kilohm megohm amp ampere volt millivolt kilovolt",
    "speed": "knot mph kmh kph",
    "share": "percent ppm ppb",
    "angle": "degree radian",
    "length": "meter metre kilometer kilometre km mile foot inch yard centimeter centimetre cm mm millimeter",
    "mass": "gram kilogram kg stone pound ounce lb lbs oz ton tonne milligram mg",
    "temperature": "celsius fahrenheit kelvin",
    "volume": "liter litre gallon cup pint quart teaspoon tablespoon ml milliliter",
    "data size": "byte kilobyte megabyte gigabyte terabyte kb mb gb tb bit kilobit megabit gigabit terabit",
    "programming language": (
        "python java javascript typescript ruby rust golang kotlin swift scala php perl haskell fortran cobol "
        "matlab bash powershell sql lua julia elixir clojure dart"
    ),
    "database": "mysql postgresql postgres sqlite mongodb redis oracle cassandra mariadb dynamodb",
    "framework": (
        "django flask fastapi react angular vue svelte rails laravel spring express nextjs tensorflow pytorch keras"
    ),
    "system": "windows linux macos mac ubuntu debian fedora android ios iphone ipad chromebook",
    "brand": (
        "apple samsung google microsoft amazon facebook meta twitter instagram whatsapp tiktok snapchat youtube "
        "netflix spotify uber lyft nokia sony lg dell lenovo asus intel amd nvidia toyota honda ford bmw audi tesla "
        "nike adidas visa mastercard paypal stripe chrome firefox safari edge slack zoom linkedin reddit pinterest "
        "openai anthropic"
    ),
    "file": (
        "pdf docx csv json xml yaml html markdown png jpg jpeg gif svg mp3 mp4 wav avi zip tar excel word powerpoint"
    ),
    "protocol": "http https ftp ssh smtp imap pop3 tcp udp grpc websocket mqtt ipv4 ipv6",
    "animal": (
        "dog cat horse cow pig sheep goat chicken duck fish bird rabbit hamster lion tiger bear wolf fox elephant "
        "monkey snake turtle frog whale dolphin shark mouse rat puppy kitten parrot bee spider"
    ),
    "food": (
        "rice pasta bread pizza burger sushi steak chicken beef pork lamb fish salmon tuna egg cheese milk butter "
        "yogurt potato tomato onion garlic carrot spinach broccoli apple banana grape mango strawberry lemon "
        "chocolate cake pancake waffle soup salad sandwich taco curry noodle tofu bean lentil honey sugar salt "
        "flour grape grapefruit peach pear plum cherry blueberry raspberry blackberry watermelon melon pineapple "
        "coconut avocado cucumber pepper peppermint lettuce cabbage cauliflower pumpkin celery mushroom peanut almond "
        "walnut oat quinoa bulgur shrimp crab lobster bacon ham sausage cookie"
    ),
    "drink": "coffee tea water juice beer wine vodka whiskey soda lemonade espresso latte cappuccino",
    "sport": (
        "football soccer basketball baseball tennis golf hockey cricket rugby volleyball swimming boxing cycling "
        "skiing surfing badminton chess"
    ),
    "instrument": "piano guitar violin drum flute trumpet saxophone cello bass ukulele clarinet",
    "vehicle": ("car bus train plane bicycle bike motorcycle truck boat ship taxi tram subway scooter van helicopter"),
    "room": "house living dining kitchen bathroom bedroom garage basement attic hallway office balcony garden",
    "device": (
        "laptop phone tablet computer monitor printer keyboard router television tv camera headphone speaker watch"
    ),
    "planet": "mercury venus earth mars jupiter saturn uranus neptune pluto moon sun",
    "element": (
        "hydrogen helium oxygen nitrogen carbon iron copper zinc aluminum lead uranium sodium potassium calcium"
    ),
    "body": (
        "head eye ear nose mouth tooth neck shoulder arm elbow hand finger chest stomach back knee leg foot toe "
        "heart lung liver kidney spleen brain skin bone hip ankle wrist thumb jaw heel throat"
    ),
    "illness": (
        "cold flu fever headache migraine cancer diabetes asthma arthritis depression anxiety allergy pneumonia "
        "covid measles malaria stroke insomnia psoriasis eczema ringworm acne gout anemia bronchitis tonsillitis "
        "hepatitis tuberculosis chickenpox mumps dementia epilepsy leukemia scurvy rickets cholera"
    ),
    "medicine": (
        "ibuprofen aspirin paracetamol acetaminophen tylenol advil antibiotic insulin penicillin amoxicillin metformin "
        "warfarin lisinopril statin omeprazole sertraline morphine codeine melatonin cortisone prednisone"
    ),
    "germ": "viral bacterial fungal virus bacteria fungus parasite",
    "aspect of illness": "symptom cause treatment cure prevention diagnosis complication",
    "age group": "baby infant toddler child kid teen teenager adolescent adult",
    "genre": "poem story essay song haiku limerick letter email memo speech joke riddle article tweet",
    "fabric": "silk cotton wool denim leather linen polyester velvet suede nylon cashmere satin",
    "material": "wood metal glass plastic concrete brick marble granite steel ceramic rubber cardboard",
    "appliance": (
        "kettle oven fridge refrigerator freezer dishwasher toaster blender microwave stove heater boiler radiator"
    ),
    "clothes": "shirt jacket coat dress skirt trousers jeans sweater hat glove sock shoe boot scarf suit",
    "furniture": "table chair sofa couch bed desk shelf wardrobe cabinet",
    "plant": "rose tulip lily daisy orchid sunflower oak pine maple birch willow cedar hydrangea wisteria",
    "place": (
        "station airport stadium museum library hospital church hotel restaurant theater theatre cinema zoo harbor "
        "harbour castle prison embassy opera"
    ),
    "making": "direct produce compose paint sculpt",
    "religion": (
        "christian christianity islam muslim hindu hinduism buddhist buddhism jewish judaism sikh atheist catholic"
    ),
    "job": (
        "doctor nurse lawyer teacher engineer accountant plumber electrician chef pilot dentist architect designer "
        "programmer scientist journalist actor singer writer painter manager cashier"
    ),
    "school": (
        "math mathematics physics chemistry biology history geography economics psychology philosophy literature "
        "statistics algebra geometry calculus"
    ),
    "branch": "army navy police",
    "card": "visa mastercard amex",
    "document": "passport visa licence license invoice receipt contract resume cv certificate",
    "given name": (
        "james john robert michael william david richard joseph thomas charles daniel matthew anthony paul steven "
        "andrew kevin brian george edward peter henry mary patricia jennifer linda elizabeth barbara susan jessica "
        "sarah karen lisa nancy betty sandra emily anna laura maria emma olivia sophia alice bob carol dave frank "
        "julia lucy adam ben chris eric mike tom alex jason ryan maya noah liam amy"
    ),
    "number class": "prime even odd integer rational irrational complex imaginary natural whole",
    "geometry": (
        "circle square triangle rectangle sphere cube cylinder cone pyramid hexagon pentagon trapezoid ellipse"
    ),
    "measure": (
        "area volume perimeter circumference diameter radius length width height weight mass speed velocity "
        "acceleration temperature pressure density age price population"
    ),
    "average": "mean median mode",
    "grade": "bachelor master doctorate phd undergraduate graduate",
    "wheel": "hatchback sedan suv pickup",
    "modal": "legal possible necessary allowed required safe normal",
    "statement field": "name address email phone password pin username birthday photo",
    "account": "checking savings credit debit",
    "shipping": "express standard overnight economy",
    "tense": "yesterday today tomorrow tonight",
    "game": "chess poker checkers sudoku scrabble monopoly",
    "marriage": "single married divorced widowed engaged",
    "rank": "bronze silver gold platinum",
    "size": "small medium large tiny huge",
    "comparison": "equal greater less",
    "polarity": "maximum minimum average total median sum difference product quotient",
    "verb of data": (
        "create read update delete insert select sort filter search count merge split reverse join append"
    ),
}

_SYNONYMS = """
far distance|tall height|long length duration|heavy weight|big size|often frequency frequently|faster quicker|
closer nearer|advantage benefit pro|free available|every each all|buy purchase order|
change modify alter update edit amend|delete remove erase|get obtain receive acquire|begin start commence|
big large huge|small little tiny|fix repair resolve solve mend|best top good great ideal|movie film|
phone mobile cell cellphone smartphone|car automobile|picture photo image photograph|cost price fee charge|
quick fast rapid|job work|money cash|kid child|learn study|find locate|show display|make create|build construct|
error mistake|error problem issue trouble fault|help assist support aid|reason cause|
mean define definition meaning stand explain describe|way method technique|tip advice suggestion|
important crucial essential vital|happen occur|require need|use utilize employ|buy get|select choose pick|
speak talk|tell inform|explain describe tell|difference differ distinction|country nation|company firm business|
increase raise grow improve boost|improve enhance better|reduce decrease lower lessen|quit stop|doctor physician|
store shop|website site webpage|password passcode|reset recover change restore|join enroll enter|contact reach|
allow let permit|allow able possible|capital city|hard difficult tough|simple easy|smart intelligent clever|
famous popular|begin learn|verify confirm check validate|connect link|return refund|deliver ship send|arrive come|
earn make|lose shed|weight fat|earth world|live stay reside|end finish complete|main primary major|kind type sort|
part component|quantity amount|maximum max|minimum min|information info detail|application app|photograph pic|
advertisement ad|example instance|function work operate|sign symptom|illness disease|medicine medication drug|
university college|exam test|teacher instructor|trip travel journey|vacation holiday|hotel accommodation|
cook prepare|wash clean|song music track|compute calculate|determine find|identify recognize detect|
convert transform turn|close shut|mistake wrong|top-up topup|subscription membership plan|cancel terminate end|
customer client user|transfer send|display print show output|execute run|method function|list array|dictionary dict|
string text|folder directory|install set|setup set|configure set|near nearby close|weather forecast|film cinema|
germany german|france french|italy italian|spain spanish|portugal portuguese|switzerland swiss|austria austrian|
netherlands dutch|belgium belgian|denmark danish|sweden swedish|norway norwegian|finland finnish|iceland icelandic|
poland polish|czechia czech|hungary hungarian|romania romanian|bulgaria bulgarian|greece greek|
russia russian|ukraine ukrainian|china chinese|japan japanese|korea korean|india indian|pakistan pakistani|
indonesia indonesian|thailand thai|vietnam vietnamese|australia australian|egypt egyptian|nigeria nigerian|
israel israeli|iran iranian|ireland irish|scotland scottish|britain british uk|england english|canada canadian|
mexico mexican|brazil brazilian|argentina argentinian|america american|asia asian|africa african|europe european|
iraq iraqi|kuwait kuwaiti|syria syrian|lebanon lebanese|algeria algerian|morocco moroccan|kenya kenyan|
ethiopia ethiopian|chile chilean|peru peruvian|colombia colombian|venezuela venezuelan|cuba cuban|bulgaria bulgarian|
malaysia malaysian|philippines filipino philippine|bangladesh bangladeshi|wales welsh|turkey turkish|
ounce oz|foot ft|celsius c|fahrenheit f|gram g|kilogram kg|milligram mg|microgram mcg|kilometre km|kilometer km|
millimetre mm|millimeter mm|centimetre cm|
metre m|meter m|litre l|liter l|millilitre ml|milliliter ml|volt v|watt w|kilowatt kw|megawatt mw|opus op|
couch sofa|begin initiate|rise go|ask inquire|answer reply respond|store save keep|total sum|
typical usual normal common average|suggest recommend|thing stuff|biggest largest greatest|smallest tiniest least|
explain clarify|summary overview|dish recipe|permit license|taxi cab|television tv|lawyer attorney|flat apartment|
autumn fall|lift elevator|petrol gas gasoline|postcode zip|soccer football|maths math|mom mum mother|dad father|
switch turn power shut set put change make|activate initiate start begin launch|newest latest recent|
determine calculate|attempt try|wrong incorrect mistaken|odd weird strange suspicious unusual|link add connect|
remember recognize know|book buy reserve purchase|add save|disable cancel remove turn|skip continue next|
alarm alert|color hue tone|trade exchange convert swap|arrive deliver come show|notice see spot|
believe think appear seem|reason why|restriction limit limitation|additional another extra more|everywhere wherever|
same identical|old age|free cost charge|permissible allow permit possible accept support available|
item product purchase thing|function option feature|retrieve recover forget|request ask need|add receive|move live|
wait expect take|generate create produce|specify indicate state give|stop cancel delete remove|enable activate turn|
employ use utilize|replace substitute|handle manage|supported accepted|documentation manual docs|entire whole full|
teach instruct|prepare preprocess|select pick retrieve|refer consult|value setting|associate relate correspond link|
prevent avoid|run execute|provide give pass offer|class type|transaction payment|usage use|disappear vanish miss|
deny reject decline refuse|owe due|soon close near|mean stand signify|kilometer km|kilogram kg|meter metre|
liter litre|usa america us|uk britain|grey gray|color colour|centimeter cm|jpeg jpg|postgres postgresql|mac macos|
gram gr|pound lb lbs|jan january|feb february|mar march|apr april|jun june|jul july|aug august|sep sept september|
oct october|nov november|dec december|annual annually yearly|noon midday|cv resume|resume continue|licence license|
phd doctorate|percent %|hour hr|minute min|second sec|rupee rs inr|dollar usd|euro eur|hectare ha|milliliter ml|
christian christianity|hindu hinduism|buddhist buddhism|muslim islam|jewish judaism|
acetaminophen paracetamol tylenol|ibuprofen advil|holland netherlands|ny york|grandma grandmother|
grandpa grandfather|teen teenager adolescent|baby infant|theater theatre|harbor harbour|fridge refrigerator|
stove cooker|direct director|produce producer|compose composer|write writer author|trousers pants|
centre center|fibre fiber|cheque check|tyre tire|programme program|aluminium aluminum|defence defense|practise practice|
analyse analyze analysis|sync synchronize synchronise synchronization|config configuration configure|repo repository|
admin administrator|auth authentication|param parameter|env environment|dev developer development|db database|
doc documentation document|spec specification|temp temporary|stats statistics|arg argument|func function|
complain complaint|grow growth|parcel package|virus viral|bacteria bacterial|fungus fungal|
bike bicycle|plane airplane aeroplane flight|math mathematics|
motorbike motorcycle|wool woollen woolen|puppy pup|pc computer|covid coronavirus|night evening|headphone earphone|
weigh weight|choose choice|depart leave|qualify eligible|paperwork document|restart reboot|employee staff
"""

# Words that carry no topic: their coming and going does not make another question.
_STOP = (
    "every each all both either a an the this that these those there here it its of to in on at by for with from "
    "into onto about as than then so and or but if is are was were be been being am do does did have has had having "
    "can could will would shall should may might must i me my mine myself you your yours yourself we us our ours he "
    "him his she her hers they them their one ones what which who whom whose when where why how please kindly just "
    "really very quite exactly actually basically simply also too tell give show let know want wish like need "
    "someone somebody anyone anybody something anything everyone thing things way ways some any such much many lot "
    "more most get got go going hi hello hey thanks thank ok okay sir dear question wonder wondering curious trying "
    "try able possible possibly maybe well now currently right again still yet already ever even else etc per via "
    "regarding concerning mean means meant say said call called explain describe define definition meaning quickly "
    "briefly short brief detail details detailed help helps best good great easy easily use used using make makes "
    "made happen happens work works come look looking find think thinking people person time put take takes took up "
    "out off down over while during between within step steps guide exact proper properly correct correctly process "
    "instruction instructions information info believe appear seem notice attempt expect reason amount additional "
    "another extra ability whether other certain given not no never without cannot nor neither none"
)
# Members of a kind that are everyday words too; alone they do not count as naming anything.
_AMBIGUOUS = (
    "turkey china georgia jordan phoenix swift go rust ruby dart express react spring edge meta zoom slack visa "
    "oracle windows ford target apple flask perl latin thai dollar pound will may rose lead back second ship train "
    "cold stroke mouse fish chicken duck bear child kid adult baby lace"
)


def _groups(text: str) -> list[frozenset[str]]:
    rows = text.replace("\n", "").split("|")
    return [frozenset(stem(word) for word in row.split()) for row in rows if row.split()]


def _index(groups: list[frozenset[str]]) -> dict[str, frozenset[str]]:
    """Every word with all it meets in any of its groups, itself left out."""
    met: dict[str, set[str]] = {}
    for group in groups:
        for word in group:
            met.setdefault(word, set()).update(group - {word})
    return {word: frozenset(others) for word, others in met.items()}


def chosen() -> list[list[str]]:
    """The groups of `thesaurus.txt`, in words."""
    lines = (files("policies.reuse") / "thesaurus.txt").read_text("ascii").splitlines()
    return [line.split() for line in lines if not line.startswith("#")]


def _kinds_by_word() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for kind, members in KINDS.items():
        for word in members:
            found.setdefault(word, set()).add(kind)
    return {word: frozenset(kinds) for word, kinds in found.items()}


STOP = frozenset(stem(word) for word in bag(_STOP))
AMBIGUOUS = frozenset(stem(word) for word in bag(_AMBIGUOUS))
OPPOSITES = _index(_groups(_OPPOSITES))
SYNONYMS = _index(_groups(_SYNONYMS))
# Only for pairing the topic words of two texts: these say nothing of kinds, names or dates.
COUNTERPARTS = _index(_groups(_SYNONYMS) + [frozenset(stem(word) for word in group) for group in chosen()])
KINDS = {kind: frozenset(stem(word) for word in bag(members)) for kind, members in _KINDS.items()}
KIND_OF = _kinds_by_word()
# Kinds whose members are named on purpose: mentioning one and mentioning none are two questions.
NAMING_KINDS = frozenset(
    (
        *("country", "people", "city", "continent", "given name", "programming language", "database", "framework"),
        *("system", "brand", "vehicle", "animal", "fabric", "age group", "illness", "medicine"),
    )
)
# Kinds of which one more is another question: "the red one" and "the red and the blue one".
COUNTED_KINDS = NAMING_KINDS | bag("colour currency room people meal drink planet religion family")
