{{/*
What a schema cannot say. Users can skip the schema, so what would hurt most is checked here again. One sentence
each: what, the value, the remedy.
*/}}
{{- define "spearhead.checks" -}}
{{- include "spearhead.checkModel" . -}}
{{- include "spearhead.checkPrepare" . -}}
{{- include "spearhead.checkSecurity" . -}}
{{- include "spearhead.checkLifecycle" . -}}
{{- include "spearhead.checkAutoscaling" . -}}
{{- include "spearhead.checkRanks" . -}}
{{- range $component := include "spearhead.components" . | splitList " " -}}
  {{- include "spearhead.checkWorkload" (dict "root" $ "component" $component) -}}
{{- end -}}
{{- end -}}

{{- define "spearhead.checkModel" -}}
{{- $volume := .Values.model.volume -}}
{{- $chosen := 0 -}}
{{- range list (ne $volume.existingClaim "") $volume.claim.create (ne $volume.hostPath "") $volume.emptyDir.enabled -}}
  {{- if . -}}{{- $chosen = add $chosen 1 -}}{{- end -}}
{{- end -}}
{{- if ne (int $chosen) 1 -}}
  {{- fail (printf "%d sources of models are set; set exactly one of model.volume.existingClaim, model.volume.claim.create, model.volume.hostPath and model.volume.emptyDir.enabled" (int $chosen)) -}}
{{- end -}}
{{- $drafter := dig "drafter" "kind" "model" .Values.draft.config -}}
{{- if and .Values.draft.enabled (eq $drafter "model") (not .Values.model.draft) -}}
  {{- fail "model.draft is empty, and a draft service of kind model needs a model of its own; set model.draft, or draft.config.drafter.kind to ngram or layer_skip, or draft.enabled to false" -}}
{{- end -}}
{{- $table := .Values.scheduler.latencyTable.existingConfigMap -}}
{{- if and (not $table) (ne (dig "policy" "kind" "static" .Values.scheduler.config) "static") -}}
  {{- fail (printf "scheduler.config.policy.kind is %s, which needs measured latencies; set scheduler.latencyTable.existingConfigMap, or the kind to static" .Values.scheduler.config.policy.kind) -}}
{{- end -}}
{{- end -}}

{{- define "spearhead.checkPrepare" -}}
{{- $prepare := .Values.model.prepare -}}
{{- $volume := .Values.model.volume -}}
{{- if and (eq $prepare.kind "none") $volume.emptyDir.enabled -}}
  {{- fail "model.volume.emptyDir is empty at the start of every pod; set model.prepare.kind to copy, or choose another volume" -}}
{{- end -}}
{{- if and (ne $prepare.kind "none") (not $prepare.source) -}}
  {{- fail (printf "model.prepare.kind is %s and model.prepare.source is empty; say what to %s" $prepare.kind $prepare.kind) -}}
{{- end -}}
{{- if and (eq $prepare.kind "copy") (not $prepare.image) -}}
  {{- fail "model.prepare.kind is copy and model.prepare.image is empty; name the image that holds the models" -}}
{{- end -}}
{{- if and (ne $prepare.kind "none") (not $volume.emptyDir.enabled) (gt (int .Values.verify.replicas) 1) -}}
  {{- fail (printf "verify.replicas is %d, and each of these pods would run model.prepare on the volume that they share; install with 1, then set model.prepare.kind to none and raise it" (int .Values.verify.replicas)) -}}
{{- end -}}
{{- if and (ne $prepare.kind "none") (not $volume.emptyDir.enabled) (include "spearhead.grouped" .) -}}
  {{- fail (printf "verify.leaderWorkerSet has %d pods, and each of them would run model.prepare on the volume that they share; install with one pod, then set model.prepare.kind to none" (int .Values.verify.leaderWorkerSet.size)) -}}
{{- end -}}
{{- if and (eq $prepare.kind "quantize") $volume.emptyDir.enabled -}}
  {{- fail "model.prepare.kind is quantize, which would run in every pod that has a volume of its own; choose a volume that the pods share" -}}
{{- end -}}
{{- end -}}

{{- define "spearhead.checkSecurity" -}}
{{- $tls := .Values.tls -}}
{{- range $side, $given := $tls -}}
  {{- if and $given.enabled (not $given.existingSecret) -}}
    {{- fail (printf "tls.%s.enabled is true and tls.%s.existingSecret is empty; name the secret with tls.crt and tls.key" $side $side) -}}
  {{- end -}}
{{- end -}}
{{- if and $tls.public.clientCertificates (not $tls.public.enabled) -}}
  {{- fail "tls.public.clientCertificates is true without TLS; set tls.public.enabled too" -}}
{{- end -}}
{{- if and .Values.telemetry.otlpHeaders.existingSecret (not .Values.telemetry.otlpEndpoint) -}}
  {{- fail "telemetry.otlpHeaders.existingSecret is set and nothing is sent; set telemetry.otlpEndpoint too" -}}
{{- end -}}
{{- end -}}

{{- define "spearhead.checkLifecycle" -}}
{{- $lifecycle := .Values.lifecycle -}}
{{- /* 10 more: traces are flushed for 2 s, and the kubelet rounds. */ -}}
{{- $least := add $lifecycle.preStopSleepSeconds $lifecycle.drainSeconds 10 | int -}}
{{- $grace := include "spearhead.grace" . | int -}}
{{- if lt $grace $least -}}
  {{- fail (printf "lifecycle.terminationGracePeriodSeconds is %d, and running requests would be killed; set it to at least preStopSleepSeconds + drainSeconds + 10 = %d, or to 0" $grace $least) -}}
{{- end -}}
{{- $readiness := mul .Values.probes.readiness.periodSeconds .Values.probes.readiness.failureThreshold | int -}}
{{- $liveness := mul .Values.probes.liveness.periodSeconds .Values.probes.liveness.failureThreshold | int -}}
{{- if le $liveness $readiness -}}
  {{- fail (printf "liveness would restart a pod after %d s, before readiness takes it out after %d s; raise probes.liveness.failureThreshold" $liveness $readiness) -}}
{{- end -}}
{{- end -}}

{{- define "spearhead.checkAutoscaling" -}}
{{- $scaling := .Values.scheduler.autoscaling -}}
{{- if ne $scaling.kind "none" -}}
  {{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
    {{- fail (printf "scheduler.autoscaling.minReplicas is %d, more than maxReplicas, which is %d" (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
  {{- end -}}
{{- end -}}
{{- if and (eq $scaling.kind "hpa") (not $scaling.cpuUtilization) (not $scaling.waitingRequests) -}}
  {{- fail "scheduler.autoscaling.kind is hpa and nothing is looked at; set cpuUtilization or waitingRequests" -}}
{{- end -}}
{{- if eq $scaling.kind "keda" -}}
  {{- if not $scaling.prometheusAddress -}}
    {{- fail "scheduler.autoscaling.kind is keda and prometheusAddress is empty; KEDA asks Prometheus how many requests wait" -}}
  {{- end -}}
  {{- if not $scaling.waitingRequests -}}
    {{- fail "scheduler.autoscaling.kind is keda and waitingRequests is 0; say how many waiting requests a pod may have" -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Checks of one service: dict root, component. */}}
{{- define "spearhead.checkWorkload" -}}
{{- $name := .component -}}
{{- $values := index .root.Values $name -}}
{{- if and (eq (toString $values.strategy.maxSurge) "0") (eq (toString $values.strategy.maxUnavailable) "0") -}}
  {{- fail (printf "%s.strategy.maxSurge and maxUnavailable are both 0, and no update could begin; set one of them to 1" $name) -}}
{{- end -}}
{{- $ports := list (int $values.port) (int $values.healthPort) (int $values.metricsPort) -}}
{{- if ne (len (uniq $ports)) 3 -}}
  {{- fail (printf "%s.port, healthPort and metricsPort are %v; they must differ" $name $ports) -}}
{{- end -}}
{{- if ne $name "scheduler" -}}
  {{- if lt (int $values.replicas) 1 -}}
    {{- fail (printf "%s.replicas is %d, and a scheduler waits for at least one; set it to 1, or draft.enabled to false for plain decoding" $name (int $values.replicas)) -}}
  {{- end -}}
  {{- if gt (int $values.gpu.count) 1 -}}
    {{- $more := ternary "verify.tensorParallelSize for a larger model, verify.replicas for more requests" "draft.replicas for more requests" (eq $name "verify") -}}
    {{- fail (printf "%s.gpu.count is %d; a process computes on one GPU: set 1, and raise %s" $name (int $values.gpu.count) $more) -}}
  {{- end -}}
  {{- if and $values.shmSize $values.resources.limits.memory -}}
    {{- $shm := include "spearhead.mebibytes" $values.shmSize | int -}}
    {{- $limit := include "spearhead.mebibytes" $values.resources.limits.memory | int -}}
    {{- if ge $shm $limit -}}
      {{- fail (printf "%s.shmSize (%s) counts as memory and takes all of resources.limits.memory (%s); raise the limit" $name $values.shmSize $values.resources.limits.memory) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Ranks: what cannot be one verifier. */}}
{{- define "spearhead.checkRanks" -}}
{{- $verify := .Values.verify -}}
{{- $ranks := int $verify.tensorParallelSize -}}
{{- if lt $ranks 1 -}}
  {{- fail (printf "verify.tensorParallelSize is %d; it must be at least 1" $ranks) -}}
{{- end -}}
{{- if and (gt $ranks 1) (dig "model" "cuda_graphs" false $verify.config) -}}
  {{- fail (printf "verify.config.model.cuda_graphs is true and verify.tensorParallelSize %d; steps of several ranks are not captured: set it to false" $ranks) -}}
{{- end -}}
{{- if $verify.leaderWorkerSet.enabled -}}
  {{- include "spearhead.checkGroup" . -}}
{{- end -}}
{{- $beside := include "spearhead.ranks" (dict "root" . "component" "verify") | int -}}
{{- if and (gt $beside 1) (gt (int $verify.gpu.count) 0) (not $verify.shmSize) -}}
  {{- fail (printf "verify.shmSize is empty, and the %d GPUs of a pod exchange through /dev/shm; set it to 1Gi or more" $beside) -}}
{{- end -}}
{{- end -}}

{{- define "spearhead.checkGroup" -}}
{{- $verify := .Values.verify -}}
{{- $ranks := int $verify.tensorParallelSize -}}
{{- $pods := int $verify.leaderWorkerSet.size -}}
{{- if lt $pods 2 -}}
  {{- fail (printf "verify.leaderWorkerSet.size is %d, and a group of pods has at least 2; set verify.leaderWorkerSet.enabled to false for one pod" $pods) -}}
{{- end -}}
{{- if ne (mod $ranks $pods) 0 -}}
  {{- fail (printf "verify.tensorParallelSize is %d, which the %d pods of verify.leaderWorkerSet.size cannot share equally; make it a multiple" $ranks $pods) -}}
{{- end -}}
{{- $ports := list (int $verify.port) (int $verify.healthPort) (int $verify.metricsPort) -}}
{{- if has (int $verify.leaderWorkerSet.rendezvousPort) $ports -}}
  {{- fail (printf "verify.leaderWorkerSet.rendezvousPort is %d, which is another port of the pod (%v); choose a free one" (int $verify.leaderWorkerSet.rendezvousPort) $ports) -}}
{{- end -}}
{{- /* Labels end in the hash of a revision after the name of a pod's set, which is this name and a number. */ -}}
{{- $name := include "spearhead.groupName" . -}}
{{- if gt (len $name) 49 -}}
  {{- fail (printf "the LeaderWorkerSet would be called %s, %d letters, and 49 fit; set fullnameOverride to at most 36" $name (len $name)) -}}
{{- end -}}
{{- end -}}

{{/* Whole mebibytes of a quantity such as 512Mi or 8Gi. */}}
{{- define "spearhead.mebibytes" -}}
{{- $units := dict "Ki" 0.0009765625 "Mi" 1.0 "Gi" 1024.0 "Ti" 1048576.0 "k" 0.00095367 "M" 0.95367 "G" 953.67 "T" 953674.3 "" 0.00000095367 -}}
{{- $number := regexFind "^[0-9.]+" (toString .) -}}
{{- $unit := trimPrefix $number (toString .) -}}
{{- if not (hasKey $units $unit) -}}
  {{- fail (printf "the quantity %v has a unit that is not known here; write it with Mi or Gi" .) -}}
{{- end -}}
{{- mulf ($number | float64) (index $units $unit) | floor | int -}}
{{- end -}}
