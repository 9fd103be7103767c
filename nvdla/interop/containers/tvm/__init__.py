"""TVM's containers: parameter files, the Model Library Format, and the C runtime's registry and remote calls.

The formats register themselves with :mod:`nvdla.interop.containers.registry`; the modules here can also be used
directly.
"""

__all__ = ["mlf", "params", "rpc_session"]
