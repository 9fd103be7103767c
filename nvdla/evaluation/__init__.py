"""What a network is worth over a whole data set: accuracy, confusion, agreement with a float model."""

from nvdla.evaluation.metrics import Summary, summarise
from nvdla.evaluation.networks import Network, open_network
from nvdla.evaluation.sources import Source, open_source
from nvdla.evaluation.table import Evaluation

__all__ = ["Evaluation", "Network", "Source", "Summary", "open_network", "open_source", "summarise"]
