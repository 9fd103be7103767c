"""The one exception family of the toolkit.

Every error caused by a file, a setting or an argument derives from :class:`NvdlaError`. A message names the
thing (table, entry, field, byte offset), its value, the limit, and what to do about it, on one line.
"""

from __future__ import annotations


class NvdlaError(Exception):
    """Base of every error that bad input can cause."""


class LoadableError(NvdlaError):
    """The FlatBuffer container is broken, or its tables refer to something that does not exist or fit."""


class LinkError(NvdlaError):
    """Memory cannot be laid out, bound or reached: region, address, size, alignment."""


class DescriptorError(NvdlaError):
    """A firmware descriptor (network, operation, surface, LUT, CPU task) cannot be decoded or is illegal."""


class ConfigError(NvdlaError):
    """The chosen hardware configuration does not exist, or lacks what the operation needs."""


class ScheduleError(NvdlaError):
    """The dependency graph cannot make progress (deadlock), or a hardware operation waits for ever."""


class TraceError(NvdlaError):
    """A hardware register trace is malformed, or asks for something the hardware does not have."""


class FormatError(NvdlaError):
    """A tensor, image, label or container file other than a loadable is malformed or of the wrong kind."""


class BuildError(NvdlaError):
    """A network cannot become a loadable: a shape, scale or layer that the hardware cannot do, or bad arguments."""
