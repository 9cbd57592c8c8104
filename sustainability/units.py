"""Unit conversions, each written once."""

from typing import Final

SECONDS_PER_HOUR: Final = 3600.0
WH_PER_KWH: Final = 1000.0
G_PER_KG: Final = 1000.0
