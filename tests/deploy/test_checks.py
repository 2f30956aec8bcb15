"""Values that cannot work are refused with a sentence: by the schema, and by templates when it is skipped."""

import pytest

from tests.deploy.cases import BASE, COPY, QUANTIZE, group, merged, scaling, volume
from tests.deploy.helm import CHART, MAJORS, run, template

KEDA = scaling(kind="keda")

REFUSED = {
    "no models": ({"model": {"volume": {"hostPath": ""}}}, "0 sources of models are set"),
    "two sources of models": ({"model": {"volume": {"existingClaim": "x"}}}, "2 sources of models are set"),
    "draft without a model": ({"model": {"draft": ""}}, "model.draft is empty"),
    "table without latencies": (
        {"scheduler": {"config": {"policy": {"kind": "table"}}}}, "needs measured latencies",
    ),
    "empty volume": (volume(emptyDir={"enabled": True}), "model.volume.emptyDir is empty"),
    "nothing to copy": (merged(COPY, {"model": {"prepare": {"source": ""}}}), "say what to copy"),
    "no image to copy from": (merged(COPY, {"model": {"prepare": {"image": ""}}}), "image is empty"),
    "quantising in every pod": (
        merged(COPY, {"model": {"prepare": QUANTIZE}}), "choose a volume that the pods share",
    ),
    "public TLS without secret": (
        {"tls": {"public": {"enabled": True}}}, "tls.public.existingSecret is empty",
    ),
    "internal TLS without secret": (
        {"tls": {"internal": {"enabled": True}}}, "tls.internal.existingSecret is empty",
    ),
    "client certificates without TLS": (
        {"tls": {"public": {"clientCertificates": True}}}, "set tls.public.enabled too",
    ),
    "headers for nobody": (
        {"telemetry": {"otlpHeaders": {"existingSecret": "x"}}}, "set telemetry.otlpEndpoint too",
    ),
    "too little grace": (
        {"lifecycle": {"terminationGracePeriodSeconds": 79}}, "drainSeconds + 10 = 80",
    ),
    "liveness before readiness": (
        {"probes": {"liveness": {"periodSeconds": 5, "failureThreshold": 3}}},
        "liveness would restart a pod after 15 s",
    ),
    "fewest above most": (scaling(kind="hpa", minReplicas=9), "more than maxReplicas, which is 4"),
    "nothing to scale by": (scaling(kind="hpa", cpuUtilization=0), "nothing is looked at"),
    "KEDA without Prometheus": (merged(KEDA, scaling(waitingRequests=4)), "prometheusAddress is empty"),
    "KEDA without a target": (
        merged(KEDA, scaling(prometheusAddress="http://p:9090")), "waitingRequests is 0",
    ),
    "an update that cannot begin": (
        {"verify": {"strategy": {"maxUnavailable": 0}}},
        "verify.strategy.maxSurge and maxUnavailable are both 0",
    ),
    "ports that collide": (
        {"draft": {"metricsPort": 50053}}, "draft.port, healthPort and metricsPort are [50053 50063 50053]",
    ),
    "shared memory that fills the limit": (
        {"verify": {"shmSize": "16Gi"}}, "verify.shmSize (16Gi) counts as memory",
    ),
    "no draft pod": ({"draft": {"replicas": 0}}, "draft.enabled to false for plain decoding"),
    "preparing in several pods": (
        {"model": {"prepare": QUANTIZE}, "verify": {"replicas": 2}},
        "each of these pods would run model.prepare",
    ),
    "several GPUs of a rank": (
        {"verify": {"gpu": {"count": 2}}}, "computes on one GPU: set 1, and raise verify.tensorParallelSize",
    ),
    "several GPUs of a drafter": ({"draft": {"gpu": {"count": 2}}}, "and raise draft.replicas"),
    "no rank": ({"verify": {"tensorParallelSize": 0}}, "verify.tensorParallelSize is 0"),
    "captured steps of several ranks": (
        {"verify": {"tensorParallelSize": 2, "config": {"model": {"cuda_graphs": True}}}}, "are not captured",
    ),
    "GPUs without shared memory": (
        {"verify": {"tensorParallelSize": 2, "gpu": {"count": 1}, "shmSize": ""}},
        "the 2 GPUs of a pod exchange through /dev/shm",
    ),
    "a group of one rank": (
        group(tensorParallelSize=1), "1, which the 2 pods of verify.leaderWorkerSet.size cannot share",
    ),
    "a group of one pod": (group(leaderWorkerSet={"size": 1}), "a group of pods has at least 2"),
    "ranks that pods cannot share": (group(tensorParallelSize=5), "cannot share equally; make it a multiple"),
    "a port for two": (
        group(leaderWorkerSet={"rendezvousPort": 9092}), "rendezvousPort is 9092, which is another port",
    ),
    "a name too long for a group": (
        merged(group(), {"fullnameOverride": "n" * 40}), "set fullnameOverride to at most 36",
    ),
    "preparing in every pod of a group": (
        merged(group(), {"model": {"prepare": QUANTIZE}}), "each of them would run model.prepare",
    ),
}  # fmt: skip

OUTSIDE_THE_SCHEMA = {
    "misspelt section": ({"telemtry": {}}, "telemtry"),
    "misspelt key": ({"telemetry": {"enable": False}}, "enable"),
    "misspelt setting of a service": ({"verify": {"config": {"kv_cache": {"pages": 1}}}}, "pages"),
    "setting that the chart owns": ({"scheduler": {"config": {"server": {"listen": "x:1"}}}}, "listen"),
    "path that the chart owns": ({"draft": {"config": {"model": {"path": "x"}}}}, "path"),
    "port as text": ({"verify": {"port": "50052"}}, "port"),
    "port too large": ({"verify": {"port": 70000}}, "port"),
    "impatient probe": ({"probes": {"timeoutSeconds": 1}}, "timeoutSeconds"),
    "draft service of several ranks": ({"draft": {"tensorParallelSize": 2}}, "tensorParallelSize"),
    "ranks that the chart owns": (
        {"verify": {"config": {"parallel": {"tensor_parallel_size": 2}}}},
        "tensor_parallel_size",
    ),
    "misspelt group": ({"verify": {"leaderWorkerSet": {"pods": 2}}}, "pods"),
    "no verify pod": ({"verify": {"replicas": 0}}, "replicas"),
    "half a draft pod": ({"draft": {"replicas": 0.5}}, "replicas"),
    "address that the chart owns": (
        {"scheduler": {"config": {"verify": {"addresses": ["x:1"]}}}},
        "addresses",
    ),
    "unknown scaler": (scaling(kind="both"), "kind"),
    "label with a blank": ({"verify": {"podLabels": {"a": "bad value!"}}}, "a"),
    "token in the values": ({"auth": {"public": {"token": "abc"}}}, "token"),
    "unknown drafter": ({"draft": {"config": {"drafter": {"kind": "magic"}}}}, "kind"),
    "quantity without sense": ({"verify": {"tmpSize": "much"}}, "tmpSize"),
    "model outside the volume": ({"model": {"target": "/etc"}}, "target"),
    "policy rule with an unknown key": ({"networkPolicy": {"clients": [{"pods": {}}]}}, "pods"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("major", MAJORS)
def test_what_cannot_work_is_refused_with_a_sentence(case, major):
    values, sentence = REFUSED[case]
    done = run(
        major, "template", "rel", str(CHART), "--skip-schema-validation", values=merged(BASE, values)
    )  # fmt: skip
    assert done.code != 0
    assert sentence in done.errors


@pytest.mark.parametrize("case", OUTSIDE_THE_SCHEMA)
@pytest.mark.parametrize("major", MAJORS)
def test_what_no_value_is_called_is_refused_by_name(case, major):
    values, name = OUTSIDE_THE_SCHEMA[case]
    done = template(merged(BASE, values), major=major)
    assert done.code != 0
    assert "schema" in done.errors
    assert name in done.errors


def test_a_cluster_without_sleeping_pre_stop_hooks_is_refused():
    done = run(4, "template", "rel", str(CHART), "--kube-version", "1.29.0", values=BASE)
    assert done.code != 0
    assert ">=1.30.0-0" in done.errors
