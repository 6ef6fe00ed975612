"""Who answers on the data plane's routes: one desk of each kind, found in the scope of a request.

Knows: that routes are registered once per process, and that several workers' desks may answer on them. Does not know:
what a desk does, which there are.
"""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from litestar.types import Scope

from gateway.routes.asker import AnyRequest

_DESKS = "nearhit.desks"
Desks = Mapping[type[Any], Any]
Kind = TypeVar("Kind")


def with_desks(scope: Scope, desks: Desks) -> Scope:
    """The scope of a request that is answered at these desks."""
    cast("dict[str, object]", scope)[_DESKS] = desks
    return scope


def desk(kind: type[Kind], request: AnyRequest) -> Kind:
    """The one of this kind among what `with_desks` put there."""
    return desk_in(request.scope, kind)


def desk_in(scope: Scope, kind: type[Kind]) -> Kind:
    return cast("Desks", cast("dict[str, object]", scope)[_DESKS])[kind]
