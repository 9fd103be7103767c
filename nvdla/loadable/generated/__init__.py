"""FlatBuffers bindings made by flatc from fbs/loadable.fbs (``python fbs/regenerate.py``); never edited by hand."""
