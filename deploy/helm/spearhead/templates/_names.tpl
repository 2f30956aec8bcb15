{{/* Names. Every object's name is this prefix and a suffix of at most 15 letters, 63 in all. */}}
{{- define "spearhead.fullname" -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
  {{- $chart := include "spearhead.name" . -}}
  {{- /* Not "contains": releases "a" and "a-spearhead" would share every name. */ -}}
  {{- $name = ternary $chart (printf "%s-%s" .Release.Name $chart) (eq .Release.Name $chart) -}}
{{- end -}}
{{- if le (len $name) 47 -}}
  {{- $name -}}
{{- else -}}
  {{- printf "%s-%s" ($name | trunc 38 | trimSuffix "-") (sha256sum $name | trunc 8) -}}
{{- end -}}
{{- end -}}

{{- define "spearhead.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "spearhead.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
  {{- .Values.serviceAccount.name | default (include "spearhead.fullname" .) -}}
{{- else -}}
  {{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* Name of the claim with the models; empty = the models come from somewhere else. */}}
{{- define "spearhead.claimName" -}}
{{- $volume := .Values.model.volume -}}
{{- if $volume.existingClaim -}}
  {{- $volume.existingClaim -}}
{{- else if $volume.claim.create -}}
  {{- include "spearhead.fullname" . }}-models
{{- end -}}
{{- end -}}

{{/* Labels that select the pods of a service: dict root, component, and label, which is the component unless other
pods than those behind the service are meant. They never change between versions. */}}
{{- define "spearhead.selector" -}}
app.kubernetes.io/name: {{ include "spearhead.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .label | default .component }}
{{- end -}}

{{/* "true" when a verifier is a group of pods. */}}
{{- define "spearhead.grouped" -}}
{{- if .Values.verify.leaderWorkerSet.enabled }}true{{ end -}}
{{- end -}}

{{/* Pods of one verifier. */}}
{{- define "spearhead.groupSize" -}}
{{- if include "spearhead.grouped" . }}{{ .Values.verify.leaderWorkerSet.size }}{{ else }}1{{ end -}}
{{- end -}}

{{/* Ranks of one pod of a service: dict root, component. */}}
{{- define "spearhead.ranks" -}}
{{- if eq .component "verify" -}}
  {{- div (int .root.Values.verify.tensorParallelSize) (include "spearhead.groupSize" .root | int) -}}
{{- else -}}1{{- end -}}
{{- end -}}

{{/* All labels: dict root, component. */}}
{{- define "spearhead.labels" -}}
{{ include "spearhead.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: spearhead
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 }}
{{- end -}}

{{/* The services to render, separated by spaces. */}}
{{- define "spearhead.components" -}}
scheduler verify{{ if .Values.draft.enabled }} draft{{ end }}
{{- end -}}

{{/* Name of a service inside the cluster: dict root, component, and suffix, which is "-pods" or empty. */}}
{{- define "spearhead.host" -}}
{{ include "spearhead.fullname" .root }}-{{ .component }}{{ .suffix }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end -}}

{{/* Image of a service: dict root, component. */}}
{{- define "spearhead.image" -}}
{{- $values := index .root.Values .component -}}
{{- $repository := $values.image.repository -}}
{{- if not $repository -}}
  {{- $repository = "spearhead-scheduler" -}}
  {{- if ne .component "scheduler" -}}
    {{- $repository = ternary "spearhead-gpu" "spearhead-cpu" (gt (int $values.gpu.count) 0) -}}
  {{- end -}}
{{- end -}}
{{- with .root.Values.image.registry }}{{ . }}/{{ end }}{{ $repository }}
{{- if $values.image.digest }}@{{ $values.image.digest }}{{ else }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end -}}

{{/* "true" when a service speaks TLS: dict root, component. */}}
{{- define "spearhead.tls" -}}
{{- $tls := .root.Values.tls -}}
{{- if (ternary $tls.public $tls.internal (eq .component "scheduler")).enabled }}true{{ end -}}
{{- end -}}

{{/* Port that probes ask: dict root, component. Probes speak no TLS. */}}
{{- define "spearhead.probePort" -}}
{{- $values := index .root.Values .component -}}
{{- if include "spearhead.tls" . }}{{ $values.healthPort }}{{ else }}{{ $values.port }}{{ end -}}
{{- end -}}

{{/* Seconds from the decision to end a pod until it is killed. */}}
{{- define "spearhead.grace" -}}
{{- $lifecycle := .Values.lifecycle -}}
{{- $lifecycle.terminationGracePeriodSeconds | default (add $lifecycle.preStopSleepSeconds $lifecycle.drainSeconds 15) -}}
{{- end -}}
