"""Evaluation of a network over a whole data set: accuracy, confusion, agreement with a float model."""

from nvdla.experiments.evaluation.metrics import Summary, summarize
from nvdla.experiments.evaluation.networks import EvaluatedNetwork, open_network
from nvdla.experiments.evaluation.table import Evaluation
from nvdla.tensors.datasets import SampleSource, open_source

__all__ = ["EvaluatedNetwork", "Evaluation", "SampleSource", "Summary", "open_network", "open_source", "summarize"]
