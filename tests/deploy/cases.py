"""The combinations of values that every check of the rendered chart looks at."""

from collections.abc import Mapping
from typing import Any

Values = dict[str, Any]

BASE: Values = {"model": {"volume": {"hostPath": "/srv/models"}}}
PEER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}
QUANTIZE = {"kind": "quantize", "source": "owner/name"}
TLS: Values = {
    "public": {"enabled": True, "existingSecret": "public-tls"},
    "internal": {"enabled": True, "existingSecret": "internal-tls"},
}
AUTH: Values = {
    "public": {"existingSecret": "client-tokens"},
    "internal": {"existingSecret": "worker-token", "key": "token"},
}


def merged(*layers: Mapping[str, Any]) -> Values:
    """Values on top of one another, as helm merges them."""
    result: Values = {}
    for layer in layers:
        for key, value in layer.items():
            old = result.get(key)
            both = isinstance(old, Mapping) and isinstance(value, Mapping)
            result[key] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result


def volume(**source: Any) -> Values:
    """Values with another source of models than the base's."""
    return {"model": {"volume": {"hostPath": "", **source}}}


def scaling(**values: Any) -> Values:
    """Values of the scheduler's autoscaling."""
    return {"scheduler": {"autoscaling": values}}


def group(**verify: Any) -> Values:
    """Values of a verifier of two pods with two ranks each."""
    base = {"tensorParallelSize": 4, "leaderWorkerSet": {"enabled": True}}
    return {"verify": merged(base, verify)}


CLAIM = volume(claim={"create": True})
COPY = merged(
    volume(emptyDir={"enabled": True}),
    {"model": {"prepare": {"kind": "copy", "image": "registry.example/models:7", "source": "/models"}}},
)
HPA = scaling(kind="hpa")
KEDA = scaling(kind="keda", prometheusAddress="http://prometheus.monitoring:9090", waitingRequests=8)
OTLP: Values = {"telemetry": {"otlpEndpoint": "http://collector.observability.svc:4317"}}
GPU: Values = {"verify": {"gpu": {"count": 1}}, "draft": {"gpu": {"count": 1}}}
NO_DRAFT: Values = {"draft": {"enabled": False}}

_CHANGES: dict[str, Values] = {
    "defaults": {},
    "existing claim": volume(existingClaim="models"),
    "claim": CLAIM,
    "claim with class": volume(claim={"create": True, "storageClassName": "fast", "size": "2Ti"}),
    "claim on one node": volume(claim={"create": True, "accessModes": ["ReadWriteOnce"]}),
    "copied models": COPY,
    "copied to a claim": merged(CLAIM, {"model": {"prepare": COPY["model"]["prepare"]}}),
    "quantised models": merged(CLAIM, {"model": {"prepare": QUANTIZE}}),
    "quantised with token": merged(
        CLAIM, {"model": {"prepare": {**QUANTIZE, "hubToken": {"existingSecret": "hub"}, "method": "gptq"}}}
    ),
    "quantised on host path": {"model": {"prepare": {**QUANTIZE, "source": "full", "scheme": "channel"}}},
    "other mount path": {"model": {"mountPath": "/srv/weights", "target": "a/b", "tokenizer": "c"}},
    "gguf target": {"model": {"target": "target.gguf", "draft": "draft.gguf"}},
    "no draft": NO_DRAFT,
    "no draft, everything secure": merged(NO_DRAFT, {"tls": TLS, "auth": AUTH}),
    "n-gram draft": {"model": {"draft": ""}, "draft": {"config": {"drafter": {"kind": "ngram"}}}},
    "layer-skip draft": {"model": {"draft": ""}, "draft": {"config": {"drafter": {"kind": "layer_skip"}}}},
    "gpu": GPU,
    "gpu for the target only": {"verify": {"gpu": {"count": 1}}},
    "gpu of another vendor": {"verify": {"gpu": {"count": 1, "resource": "amd.com/gpu"}}},
    "gpu with surge": merged(GPU, {"verify": {"strategy": {"maxSurge": 1, "maxUnavailable": 0}}}),
    "ranks on gpus": {"verify": {"tensorParallelSize": 4, "gpu": {"count": 1}}},
    "ranks on processors": {"verify": {"tensorParallelSize": 2, "resources": {"limits": {"cpu": "6"}}}},
    "patient ranks": {
        "verify": {"tensorParallelSize": 2, "config": {"parallel": {"lost_after_s": 10}}},
    },
    "gpu, runtime class": merged(GPU, {"verify": {"runtimeClassName": "nvidia"}}),
    "no shm": {"verify": {"shmSize": ""}},
    "much shm": {"verify": {"shmSize": "8Gi"}, "draft": {"shmSize": "512Mi"}},
    "public tls": {"tls": {"public": TLS["public"]}},
    "client certificates": {"tls": {"public": {**TLS["public"], "clientCertificates": True}}},
    "internal tls": {"tls": {"internal": TLS["internal"]}},
    "all tls": {"tls": TLS},
    "client tokens": {"auth": {"public": AUTH["public"]}},
    "worker tokens": {"auth": {"internal": AUTH["internal"]}},
    "all tls and tokens": {"tls": TLS, "auth": AUTH},
    "hpa": HPA,
    "hpa on waiting requests": scaling(kind="hpa", cpuUtilization=0, waitingRequests=4),
    "hpa on both": scaling(kind="hpa", waitingRequests=4, maxReplicas=20),
    "keda": KEDA,
    "keda and pod monitor": merged(KEDA, {"monitoring": {"kind": "PodMonitor"}}),
    "service monitor": {"monitoring": {"kind": "ServiceMonitor"}},
    "service monitor with labels": {
        "monitoring": {"kind": "ServiceMonitor", "labels": {"release": "prometheus"}, "interval": "30s"}
    },
    "pod monitor": {"monitoring": {"kind": "PodMonitor", "labels": {"team": "serving"}}},
    "dashboard": {"monitoring": {"dashboard": {"enabled": True}}},
    "collector": OTLP,
    "collector on another port": {"telemetry": {"otlpEndpoint": "https://collector.example:443/"}},
    "collector with headers": merged(OTLP, {"telemetry": {"otlpHeaders": {"existingSecret": "otlp"}}}),
    "collector without port": {"telemetry": {"otlpEndpoint": "http://collector"}},
    "no traces": {"telemetry": {"sampleRatio": 0, "logLevel": "debug"}},
    "no network policy": {"networkPolicy": {"enabled": False}},
    "narrow network policy": merged(
        OTLP, {"networkPolicy": {"clients": [PEER], "monitoring": [PEER], "collectors": [PEER]}}
    ),
    "policy with hub": merged(
        CLAIM,
        {"model": {"prepare": QUANTIZE}},
        {"networkPolicy": {"workerEgress": [{"ports": [{"port": 443, "protocol": "TCP"}]}]}},
    ),
    "no budgets": {"pdb": {"enabled": False}},
    "budget in percent": {"pdb": {"maxUnavailable": "50%"}},
    "three schedulers": {"scheduler": {"replicas": 3}},
    "no scheduler": {"scheduler": {"replicas": 0}},
    "several workers": {"verify": {"replicas": 3}, "draft": {"replicas": 2}},
    "several workers with TLS": {"verify": {"replicas": 2}, "draft": {"replicas": 2}, "tls": TLS},
    "load balancer": {
        "scheduler": {"service": {"type": "LoadBalancer", "annotations": {"example.com/internal": "true"}}}
    },
    "node port": {"scheduler": {"service": {"type": "NodePort"}}},
    "latency table": {"scheduler": {"latencyTable": {"existingConfigMap": "latencies"}}},
    "linear policy": {
        "scheduler": {
            "latencyTable": {"existingConfigMap": "latencies", "key": "table.json"},
            "config": {"policy": {"kind": "linear"}},
        }
    },
    "limits of the scheduler": {
        "scheduler": {"config": {"limits": {"max_waiting_tokens": 2000000, "verify_timeout_s": 90}}}
    },
    "settings of all kinds": {
        "verify": {
            "config": {
                "stuck_after_s": 60.5,
                "variants": {"hold": ["w4", "fp16"], "keep_four_bits": False, "serve": "w4"},
                "kv_cache": {"memory_mib": 65536},
                "model": {"name": 'with "quotes", <b> & $(HOME)'},
            }
        }
    },
    "settings of the draft": {"draft": {"config": {"drafter": {"max_draft_tokens": 4}, "stuck_after_s": 9}}},
    "whole cores": {"verify": {"resources": {"limits": {"cpu": "8"}}}},
    "parts of cores": {"verify": {"resources": {"limits": {"cpu": "7500m"}}}},
    "threads and cores": {
        "verify": {"resources": {"limits": {"cpu": 8}}, "config": {"model": {"threads": 4}}}
    },
    "ipv6": {"listenAddress": "[::]"},
    "other domain": {"clusterDomain": "cluster.example"},
    "other ports": {
        "scheduler": {"port": 443, "healthPort": 8081, "metricsPort": 9100},
        "verify": {"port": 7001, "healthPort": 7002, "metricsPort": 7003},
        "tls": TLS,
    },
    "long drain": {"lifecycle": {"drainSeconds": 3600, "preStopSleepSeconds": 30}},
    "grace given": {"lifecycle": {"terminationGracePeriodSeconds": 300}},
    "slow start": {"verify": {"startupSeconds": 7203}},
    "patient probes": {"probes": {"timeoutSeconds": 20, "liveness": {"failureThreshold": 12}}},
    "no spread": {"topologySpread": {"enabled": False}},
    "hard spread": {"topologySpread": {"whenUnsatisfiable": "DoNotSchedule", "maxSkew": 2}},
    "placement": {
        "verify": {
            "nodeSelector": {"gpu": "h200"},
            "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "priorityClassName": "serving",
            "affinity": {
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 1, "podAffinityTerm": {"topologyKey": "topology.kubernetes.io/zone"}}
                    ]
                }
            },
        }
    },
    "pod labels": {
        "scheduler": {"podLabels": {"team": "serving"}, "podAnnotations": {"example.com/when": "12"}},
        "draft": {"env": {"LOG": "1", "NUMEXPR_MAX_THREADS": "2"}},
    },
    "images": {
        "image": {"registry": "registry.example/team", "tag": "1.2.3", "pullSecrets": ["pull"]},
        "verify": {"image": {"digest": "sha256:" + "0" * 64}},
        "scheduler": {"image": {"repository": "front"}},
    },
    "own account": {"serviceAccount": {"name": "serving", "annotations": {"example.com/role": "x"}}},
    "foreign account": {"serviceAccount": {"create": False, "name": "given"}},
    "no account": {"serviceAccount": {"create": False}},
    "other names": {"nameOverride": "model", "fullnameOverride": "front"},
    "as a dependency": {"global": {"imageRegistry": "x", "anything": {"goes": 1}}},
    "production": merged(
        CLAIM, GPU, OTLP, KEDA, {"tls": TLS, "auth": AUTH, "monitoring": {"kind": "ServiceMonitor"}}
    ),
}

_GROUPS: dict[str, Values] = {
    "group": group(),
    "groups on gpus": merged(GPU, group(replicas=3, tensorParallelSize=16)),
    "group, all tls and tokens": merged(group(), {"tls": TLS, "auth": AUTH}),
    "group with monitors": merged(group(), {"monitoring": {"kind": "PodMonitor"}}),
    "group with hub": merged(group(), {"networkPolicy": {"workerEgress": [{"ports": [{"port": 443}]}]}}),
    "group without policy": merged(group(), {"networkPolicy": {"enabled": False}, "pdb": {"enabled": False}}),
}

CASES: dict[str, Values] = {name: merged(BASE, change) for name, change in _CHANGES.items()}
"""From a name to complete values."""

GROUPS: dict[str, Values] = {name: merged(BASE, change) for name, change in _GROUPS.items()}
"""The same, with a verifier of several pods."""
