"""Wording whose right answer changes with the clock, so that meaning alone can never make a kept answer right.

Knows much of English and the plainest words ("today", "now", "weather") of two dozen other languages. Errs towards
caution: "the current user" is taken for "current", which costs a semantic hit.
"""

import re

# Only texts with one of these words are looked at closely: nearly all are let go after one pass over their words.
_HINTS = frozenset(
    (
        *(
            "today",
            "todays",
            "tonight",
            "tonights",
            "now",
            "nowadays",
            "tomorrow",
            "tomorrows",
            "yesterday",
            "yesterdays",
        ),
        *(
            "latest",
            "newest",
            "current",
            "currently",
            "recent",
            "recently",
            "breaking",
            "upcoming",
            "ongoing",
            "moment",
        ),
        *("days", "far", "as", "date", "live", "this", "next", "last", "past", "coming", "time", "day", "ago", "from"),
        *(
            "weather",
            "forecast",
            "outside",
            "price",
            "prices",
            "rate",
            "rates",
            "news",
            "headlines",
            "score",
            "trending",
        ),
        *(
            "until",
            "till",
            "left",
            "rain",
            "raining",
            "snow",
            "snowing",
            "sunset",
            "sunrise",
            "moon",
            "traffic",
            "status",
        ),
        *("happening", "going", "winning", "leading", "results", "standings", "down", "offline", "lately"),
        *(
            "presently",
            "present",
            "still",
            "yet",
            "worth",
            "quote",
            "year",
            "it",
            "new",
            "update",
            "updates",
            "countdown",
        ),
    )
)
_WORD = re.compile(r"[a-z]+")
_ANY_WORD = re.compile(r"[^\W\d_]+")
# The same in other languages, by word; where words are not apart, or are several, by what stands anywhere in the text.
_ELSEWHERE = frozenset(
    """
    heute heutige heutigen heutiger gestern jetzt aktuell aktuelle aktuellen aktueller aktuelles neueste neuesten
    derzeit momentan wetter schlagzeilen aujourd demain maintenant actuel actuelle actuels actuellement
    météo hoy ayer ahora actualmente noticias clima oggi domani ieri adesso attuale attualmente notizie meteo
    stasera hoje amanhã ontem atual atualmente notícias vandaag gisteren momenteel huidige nieuws idag
    imorgon igår nuvarande senaste väder nyheter nuværende nåværende vejret nyheder dzisiaj dziś jutro wczoraj
    teraz obecnie obecny aktualny pogoda dnes zítra včera nyní teď aktuální počasí tänään
    huomenna nykyinen sää uutiset holnap tegnap jelenlegi időjárás hírek astăzi azi mâine acum vremea
    știri bugün yarın dün şimdi güncel haberler besok kemarin sekarang terbaru cuaca сегодня завтра вчера сейчас
    текущий текущая последние погода новости сьогодні вчора зараз новини днес утре времето σήμερα αύριο χθες τώρα
    καιρός اليوم غدا أمس الآن الحالي الطقس أخبار امروز فردا دیروز اکنون היום מחר אתמול עכשיו חדשות
    """.split()  # noqa: RUF001, SIM905 - Turkish; a list of words reads best as text
)
_PHRASES = (
    *("wie spät", "quelle heure", "cette semaine", "ce soir", "qué hora", "esta semana", "esta noche", "che ore"),
    *("uhrzeit haben", "uhrzeit ist", "in den nachrichten", "questa settimana", "que horas", "hoe laat", "i dag"),
    *("i morgen", "saat kaç", "hava durumu"),
)
_WITHIN = ("hari ini", "saat ini")
_PLAIN = tuple(phrase for phrase in (*_PHRASES, *_WITHIN) if phrase.isascii())
_ANYWHERE = re.compile(
    "|".join(
        (
            rf"\b(?:{'|'.join(_PHRASES)})\b",
            *("который час", "котра година", "hôm nay", "ngày mai", "hôm qua", "bây giờ", "hiện tại", "thời tiết"),
            *(*_WITHIN, "która godzina", "मौसम", "समाचार"),
            # \w does not know vowel signs: "आजादी" is freedom and begins with "today"
            r"(?<![\u0900-\u09ff])(?:आज|आजकल|अभी|वर्तमान|আজ|আজকে|এখন)(?![\u0900-\u09ff])",
            *("วันนี้", "พรุ่งนี้", "เมื่อวาน", "ตอนนี้", "ปัจจุบัน", "ล่าสุด", "今天", "明天", "昨天", "现在", "現在"),
            *(
                "最新",
                "当前",
                "當前",
                "天气",
                "天氣",
                "新闻",
                "新聞",
                "今日",
                "今年",
                "本周",
                "几点",
                "幾點",
                "明日",
                "昨日",
            ),
            *(
                "今",
                "天気",
                "ニュース",
                "何時(?!間)",
                "오늘",
                "내일",
                "어제",
                "지금",
                "현재",
                "최신",
                "날씨",
                "뉴스",
                "몇 시",
            ),
        )
    )
)
# Longer texts hold documents, not questions about the moment.
_MAX_CHARS = 4_000

_TIME_SENSITIVE = re.compile(
    r"""\b(?:
        today(?:'?s)? | tonight(?:'?s)? | now | nowadays | tomorrow(?:'?s)? | yesterday(?:'?s)? | latest | newest |
        (?<!electric\ )(?<!electrical\ )(?<!direct\ )(?<!alternating\ )
            current(?!\ in\ an?\b|\ (?:working\ )?(?:directory|folder|branch)) |
        currently | recent | recently | breaking(?!\ changes?) | upcoming | ongoing | at\ the\ moment | these\ days |
        so\ far | as\ of | up[\ -]to[\ -]date | live\ (?:score|update|price|stream)s? | (?:right|just|by|until)\ now |
        (?:this|next|last|past|coming)\ (?:minute|hour|morning|afternoon|evening|night|week|weekend|month|quarter|
            year|season|spring|summer|autumn|fall|winter|monday|tuesday|wednesday|thursday|friday|saturday|sunday)s? |
        what(?:'s|\ is)?\ (?:the\ )?(?:time|date|day)\ (?:is\ it|it\ is|of\ day|in) |
        what(?:'s|\ is)\ the\ (?:time|date)(?=\s*[?.!]|\s*$|\ in\b) |
        (?:\d+|an?|few|\w+)\ (?:minute|hour|day|week|month|year)s?\ (?:ago|from\ now) |
        weather | forecast | temperature\ outside | (?:stock|share|gas|fuel|gold|oil|bitcoin|crypto)\ prices? |
        exchange\ rates? | news | headlines | score\ of\ the | trending |
        price\ of\ (?:\w+\ )?(?:stocks?|shares?|gas|fuel|gold|silver|oil|bitcoin|ethereum|crypto) |
        (?:bitcoin|ethereum|gold|silver|oil|stocks?|shares?)\ (?:is\ )?worth | stock\ quote |
        (?:what|which)\ (?:year|month|day|date|weekday)\ is\ it | is\ it\ (?:still\ )?(?:raining|snowing) |
        (?:will\ it|is\ it\ going\ to)\ (?:rain|snow) | countdown\ to |
        how\ (?:long|much\ time|many\ (?:days|weeks|months|hours|minutes))\ (?:is\ |are\ )?
            (?:it\ |there\ )?(?:until|till|left) | (?:days|weeks)\ (?:until|till|left) |
        (?:when|where|what\ time)(?:'s|\ is|\ are|\ does|\ do|\ will)\ the\ next | lately | presently | at\ present |
        (?:when|what\ time)(?:'s|\ is|\ does|\ will)\ (?:the\ )?(?:sun|sunset|sunrise|moon|full\ moon)\b | moon\ phase |
        what(?:'s|\ is)\ (?:new\b(?!\ in\ \w+\ v?\d)|happening|going\ on) | any\ (?:new\ )?updates? |
        (?:who|(?:which|what)\ \w+)(?:'s|\ is)\ (?:winning|leading) |
        (?:election|match|game|race)\ (?:results?|standings) |
        (?:how(?:'s|\ is)|what(?:'s|\ is)|is\ there)\ (?:the\ |any\ |much\ |a\ lot\ of\ )?traffic |
        traffic\ (?:like|report) |
        (?:^(?:check\ )?|(?:what(?:'s|\ is)|tell\ me)\ )(?:the\ (?:\w+\ )?|my\ )?
            (?:status\ of|(?:flight|train|order)\ status) |
        still\ (?:alive|open|available|married|valid|president|the) |
        (?:out|released|over|open|ready|finished|done)\ yet
    )\b | (?:^|[.,!?]\s|\bwhy\ )is\ [\w.]+\ (?:down|offline)(?=\s*\?|\s*$)""",
    re.IGNORECASE | re.VERBOSE,
)


def is_time_sensitive(text: str) -> bool:
    """Whether `text` asks about a moving present ("the latest …", "today", "this week")."""
    if len(text) > _MAX_CHARS:
        return False
    lower = text.lower()
    words, plain = _WORD.findall(lower), lower.isascii()
    if not _HINTS.isdisjoint(words) and _TIME_SENSITIVE.search(text) is not None:
        return True
    if not _ELSEWHERE.isdisjoint(words if plain else _ANY_WORD.findall(lower)):
        return True
    # Every request comes by here, and to look for what is written in all scripts takes four fifths of the time.
    if plain and not any(map(lower.__contains__, _PLAIN)):
        return False
    return _ANYWHERE.search(lower) is not None
