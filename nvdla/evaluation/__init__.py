"""What a network is worth over a whole data set: accuracy, confusion, agreement with a float model."""

from nvdla.evaluation.metrics import Summary, summarise
from nvdla.evaluation.networks import EvaluatedNetwork, open_network
from nvdla.evaluation.sources import SampleSource, open_source
from nvdla.evaluation.table import Evaluation

__all__ = ["EvaluatedNetwork", "Evaluation", "SampleSource", "Summary", "open_network", "open_source", "summarise"]
