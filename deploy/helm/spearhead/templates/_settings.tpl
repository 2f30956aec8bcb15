{{/*
The overrides of a service's TOML file: dict root, component. The user's come first and the chart's own win: what
has to agree with ports, volumes and secrets is no value. As JSON, section to key to value.
*/}}
{{- define "spearhead.settings" -}}
{{- $root := .root -}}
{{- $values := index $root.Values .component -}}
{{- $settings := deepCopy $values.config -}}
{{- $_ := set $settings "server" (mergeOverwrite (dict) ($settings.server | default dict) (include "spearhead.serverSettings" . | fromJson)) -}}
{{- $_ := set $settings "telemetry" (mergeOverwrite (dict) ($settings.telemetry | default dict) (include "spearhead.telemetrySettings" . | fromJson)) -}}
{{- $model := $root.Values.model -}}
{{- $target := printf "%s/%s" $model.mountPath $model.target -}}
{{- if eq .component "scheduler" -}}
  {{- $tokenizer := ternary (printf "%s/%s" $model.mountPath $model.tokenizer) $target (ne $model.tokenizer "") -}}
  {{- $_ := set $settings "model" (dict "tokenizer" $tokenizer) -}}
  {{- if not $root.Values.draft.enabled -}}{{- $_ := unset $settings "draft" -}}{{- end -}}
  {{- range $worker := include "spearhead.components" $root | splitList " " | rest -}}
    {{- $own := include "spearhead.targetSettings" (dict "root" $root "component" $worker) | fromJson -}}
    {{- $_ := set $settings $worker (mergeOverwrite (dict) (index $settings $worker | default dict) $own) -}}
  {{- end -}}
  {{- if $values.latencyTable.existingConfigMap -}}
    {{- $policy := mergeOverwrite (dict "kind" "table") ($settings.policy | default dict) -}}
    {{- $_ := set $settings "policy" (set $policy "table" (printf "/etc/spearhead/latency-table/%s" $values.latencyTable.key)) -}}
  {{- end -}}
{{- else -}}
  {{- $path := $target -}}
  {{- if and (eq .component "draft") $model.draft -}}
    {{- $path = printf "%s/%s" $model.mountPath $model.draft -}}
  {{- end -}}
  {{- $own := dict "path" $path "device" (ternary "cuda" "cpu" (gt (int $values.gpu.count) 0)) -}}
  {{- /* A limit in whole cores: a thread more than that is throttled in the middle of a step. */ -}}
  {{- $cores := $values.resources.limits.cpu | toString -}}
  {{- $threads := dict -}}
  {{- if regexMatch "^[1-9][0-9]*$" $cores -}}
    {{- $threads = dict "threads" (max 1 (div (int $cores) (include "spearhead.ranks" . | int))) -}}
  {{- end -}}
  {{- $_ := set $settings "model" (mergeOverwrite $threads ($settings.model | default dict) $own) -}}
  {{- if and (eq .component "verify") (gt (int $values.tensorParallelSize) 1) -}}
    {{- $parallel := dict "tensor_parallel_size" (int $values.tensorParallelSize) "launch" "spawn" -}}
    {{- $patience := dict -}}
    {{- if include "spearhead.grouped" $root -}}
      {{- $_ := set $parallel "launch" "environment" -}}
      {{- $_ := set $parallel "rendezvous_port" (int $values.leaderWorkerSet.rendezvousPort) -}}
      {{- /* Pods of a group may wait for nodes and images, each for itself. A little less than the probe's patience,
             so that the log says which ranks are missing before the pod is ended. */ -}}
      {{- $patience = dict "start_timeout_s" (max 1 (div (mul (int $values.startupSeconds) 9) 10)) -}}
    {{- end -}}
    {{- $_ := set $settings "parallel" (mergeOverwrite $patience ($settings.parallel | default dict) $parallel) -}}
  {{- end -}}
{{- end -}}
{{- $settings | toJson -}}
{{- end -}}

{{- define "spearhead.serverSettings" -}}
{{- $root := .root -}}
{{- $values := index $root.Values .component -}}
{{- $server := dict "listen" (printf "%s:%d" $root.Values.listenAddress (int $values.port)) "drain_s" $root.Values.lifecycle.drainSeconds -}}
{{- if include "spearhead.tls" . -}}
  {{- $public := eq .component "scheduler" -}}
  {{- $folder := ternary "/etc/spearhead/tls-public" "/etc/spearhead/tls-internal" $public -}}
  {{- $_ := set $server "tls_certificate" (printf "%s/tls.crt" $folder) -}}
  {{- $_ := set $server "tls_key" (printf "%s/tls.key" $folder) -}}
  {{- if or (not $public) $root.Values.tls.public.clientCertificates -}}
    {{- $_ := set $server "tls_client_ca" (printf "%s/ca.crt" $folder) -}}
  {{- end -}}
  {{- $_ := set $server "health_listen" (printf "%s:%d" $root.Values.listenAddress (int $values.healthPort)) -}}
{{- end -}}
{{- $side := ternary "public" "internal" (eq .component "scheduler") -}}
{{- $tokens := index $root.Values.auth $side -}}
{{- if $tokens.existingSecret -}}
  {{- $_ := set $server "token_file" (printf "/etc/spearhead/tokens-%s/%s" $side $tokens.key) -}}
{{- end -}}
{{- $server | toJson -}}
{{- end -}}

{{- define "spearhead.telemetrySettings" -}}
{{- $values := index .root.Values .component -}}
{{- $given := .root.Values.telemetry -}}
{{- $listen := printf "%s:%d" .root.Values.listenAddress (int $values.metricsPort) -}}
{{- $telemetry := dict "metrics_listen" $listen "log_level" $given.logLevel "log_format" "json" "sample_ratio" $given.sampleRatio -}}
{{- with $given.otlpEndpoint -}}{{- $_ := set $telemetry "otlp_endpoint" . -}}{{- end -}}
{{- $telemetry | toJson -}}
{{- end -}}

{{/* How the scheduler reaches the workers of a kind: dict root, component. */}}
{{- define "spearhead.targetSettings" -}}
{{- $values := index .root.Values .component -}}
{{- $host := include "spearhead.host" (merge (dict "suffix" "") .) -}}
{{- $target := dict "address" (printf "%s:%d" $host (int $values.port)) -}}
{{- if gt (int $values.replicas) 1 -}}
  {{- $pods := include "spearhead.host" (merge (dict "suffix" "-pods") .) -}}
  {{- $_ := set $target "address" (printf "dns:///%s:%d" $pods (int $values.port)) -}}
{{- end -}}
{{- if .root.Values.tls.internal.enabled -}}
  {{- /* One certificate, however many pods. */ -}}
  {{- $_ := set $target "tls_name" $host -}}
  {{- $_ := set $target "tls_ca" "/etc/spearhead/tls-internal/ca.crt" -}}
  {{- $_ := set $target "tls_certificate" "/etc/spearhead/tls-internal/tls.crt" -}}
  {{- $_ := set $target "tls_key" "/etc/spearhead/tls-internal/tls.key" -}}
{{- end -}}
{{- with .root.Values.auth.internal -}}
  {{- if .existingSecret -}}{{- $_ := set $target "token_file" (printf "/etc/spearhead/tokens-internal/%s" .key) -}}{{- end -}}
{{- end -}}
{{- $target | toJson -}}
{{- end -}}

{{/* Arguments of a service: dict root, component. A JSON value is a TOML value too, for everything a key can hold. */}}
{{- define "spearhead.arguments" -}}
{{- $settings := include "spearhead.settings" . | fromJson -}}
- {{ .component }}_service
- --config=/etc/spearhead/config/{{ .component }}.toml
{{- range $section, $content := $settings }}
{{- if kindIs "map" $content }}
{{- range $key, $value := $content }}
{{- if not (kindIs "invalid" $value) }}
- {{ printf "--set=%s.%s=%s" $section $key (toJson $value) | quote }}
{{- end }}
{{- end }}
{{- else if not (kindIs "invalid" $content) }}
- {{ printf "--set=%s=%s" $section (toJson $content) | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A service's TOML file: dict root, component. Without a draft service the scheduler's section about it goes. */}}
{{- define "spearhead.configFile" -}}
{{- $file := .root.Files.Get (printf "config/%s.toml" .component) -}}
{{- if and (eq .component "scheduler") (not .root.Values.draft.enabled) -}}
  {{- $file = regexReplaceAll "(?s)\n\\[draft\\]\n.*?\n\n\\[" $file "\n[" -}}
{{- end -}}
{{- $file -}}
{{- end -}}
