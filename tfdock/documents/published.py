"""The list of published documents: each name for `tfdock schema NAME`, with its type."""

from __future__ import annotations

from tfdock.bazel.cache.registry_cache import CacheConfiguration
from tfdock.bench.comparison import BenchReport
from tfdock.bench.published_scores import PublishedScores
from tfdock.documents import (
    build_documents,
    cache_documents,
    knowledge_documents,
    matrix_documents,
    plan_documents,
    service_documents,
    wheel_documents,
    wheelhouse_documents,
)
from tfdock.offline.bundle_format import Index
from tfdock.trace.tracing import TraceReport

#: Types of the documents that commands print with `--json`; `schema` and `ok` come before their keys.
PRINTED: dict[str, tuple[type, ...]] = {
    "advise": (knowledge_documents.AdviseDocument,),
    "bench": (BenchReport, PublishedScores),
    "build": (build_documents.BuildDocument,),
    "cache-clean": (cache_documents.CacheCleanDocument,),
    "cache-list": (cache_documents.CacheListDocument,),
    "cache-prune": (cache_documents.CachePruneDocument,),
    "cache-pull": (cache_documents.CachePullDocument,),
    "cache-push": (cache_documents.CachePushDocument,),
    "cache-verify": (cache_documents.CacheVerifyDocument,),
    "check": (plan_documents.CheckDocument,),
    "ci-check": (service_documents.CiCheckDocument,),
    "ci-render": (service_documents.CiRenderDocument,),
    "diagnose": (service_documents.DiagnoseDocument,),
    "doctor": (plan_documents.DoctorDocument,),
    "explain": (
        knowledge_documents.ExplainDocument,
        knowledge_documents.CodesDocument,
        knowledge_documents.SwitchDocument,
        knowledge_documents.PresetDocument,
        knowledge_documents.TopicDocument,
    ),
    "fetch": (plan_documents.FetchDocument,),
    "gpus": (knowledge_documents.GpusDocument,),
    "image-pack": (wheelhouse_documents.ImagePackDocument,),
    "image-push": (wheelhouse_documents.ImagePushDocument,),
    "image-runtime": (wheelhouse_documents.ImageRuntimeDocument,),
    "init": (knowledge_documents.InitDocument,),
    "inspect": (wheel_documents.InspectDocument,),
    "lock": (plan_documents.LockDocument,),
    "matrix-plan": (matrix_documents.MatrixPlanDocument,),
    "plan": (plan_documents.PlanDocument,),
    "pull": (build_documents.PullDocument,),
    "releases": (knowledge_documents.ReleasesDocument,),
    "render": (plan_documents.RenderDocument,),
    "report": (build_documents.ReportDocument, build_documents.ReportBundleDocument),
    "status": (build_documents.StatusDocument,),
    "trace": (TraceReport,),
    "verify": (wheel_documents.VerifyDocument,),
    "wheelhouse-index": (wheelhouse_documents.WheelhouseIndexDocument,),
    "wheelhouse-list": (wheelhouse_documents.WheelhouseListDocument,),
    "wheelhouse-prune": (wheelhouse_documents.WheelhousePruneDocument,),
    "wheelhouse-serve": (wheelhouse_documents.WheelhouseServeDocument,),
}

#: Documents that are files.
KEPT: dict[str, type] = {
    "bundle": Index,
    "cache": CacheConfiguration,
    "lock-file": plan_documents.LockFileDocument,
    "matrix-report": matrix_documents.MatrixReportDocument,
    "pulled": build_documents.PulledDocument,
    "record": build_documents.RecordDocument,
    "run": build_documents.RunDocument,
}

#: Printed documents whose `schema` is not their name. For example, `matrix` is already the name of a user's file.
SCHEMAS = {"matrix-plan": "tfdock.matrix/1"}


def schema_id(name: str) -> str:
    """Return the `schema` of a printed document, such as `tfdock.check/1`."""
    return SCHEMAS.get(name, f"tfdock.{name}/1")


#: Types whose documents may have further keys, because they contain records of other programs.
OPEN: frozenset[type] = frozenset({build_documents.ReportDocument})
