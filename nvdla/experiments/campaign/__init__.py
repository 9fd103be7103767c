"""Campaigns: tables of tasks on the cores of this machine or on a Dask cluster, resumable, with the same results.

A campaign is a :class:`Table`: it says which tasks there are and how a worker does them. :func:`run` hands shards of
tasks to workers, appends their records to a journal as they come, and gives all records in the order of the tasks.
docs/evaluate.md writes one in thirty lines.
"""

from nvdla.experiments.campaign.journal import CampaignPart, Journal, Record, Table, Task
from nvdla.experiments.campaign.pool import Tls
from nvdla.experiments.campaign.runner import Workers, run

__all__ = ["CampaignPart", "Journal", "Record", "Table", "Task", "Tls", "Workers", "run"]
