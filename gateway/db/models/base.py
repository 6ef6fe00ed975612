"""What every table has in common: names of constraints, and which SQL type a Python type becomes.

Does not know: any table.
"""

from typing import Any, ClassVar

from sqlalchemy import BigInteger, Double, MetaData, Text
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeEngine

_TAKEN = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """`int` is BIGINT, `float` a double, `str` unbounded text."""

    metadata = MetaData(naming_convention=_TAKEN)
    type_annotation_map: ClassVar[dict[Any, type[TypeEngine[Any]]]] = {int: BigInteger, float: Double, str: Text}
