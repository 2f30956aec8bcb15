{{/* The pod of a service: dict root, component. */}}
{{- define "spearhead.pod" -}}
{{- $root := .root -}}
{{- $values := index $root.Values .component -}}
{{- $worker := ne .component "scheduler" -}}
automountServiceAccountToken: false
enableServiceLinks: false
serviceAccountName: {{ include "spearhead.serviceAccountName" $root }}
terminationGracePeriodSeconds: {{ include "spearhead.grace" $root }}
securityContext: {{- include "spearhead.podSecurity" $root | nindent 2 }}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.topologySpread }}
{{- if .enabled }}
topologySpreadConstraints:
  - maxSkew: {{ .maxSkew }}
    topologyKey: {{ .topologyKey }}
    whenUnsatisfiable: {{ .whenUnsatisfiable }}
    labelSelector:
      matchLabels: {{- include "spearhead.selector" $ | nindent 8 }}
    # Of an update's old and new pods only the new ones count.
    matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end }}
{{- with include "spearhead.prepareContainer" . }}
initContainers: {{- . | nindent 2 }}
{{- end }}
containers:
  - name: {{ .component }}
    image: {{ include "spearhead.image" . | quote }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    args: {{- include "spearhead.arguments" . | nindent 6 }}
    env: {{- include "spearhead.environment" . | nindent 6 }}
    ports:
      - {name: grpc, containerPort: {{ $values.port }}, protocol: TCP}
      {{- if include "spearhead.tls" . }}
      - {name: health, containerPort: {{ $values.healthPort }}, protocol: TCP}
      {{- end }}
      {{- if not .label }}
      - {name: metrics, containerPort: {{ $values.metricsPort }}, protocol: TCP}
      {{- end }}
      {{- if and (eq .component "verify") (include "spearhead.grouped" $root) }}
      - {name: rendezvous, containerPort: {{ $values.leaderWorkerSet.rendezvousPort }}, protocol: TCP}
      {{- end }}
    {{- include "spearhead.probes" . | nindent 4 }}
    lifecycle:
      preStop:
        sleep: {seconds: {{ $root.Values.lifecycle.preStopSleepSeconds }}}
    securityContext: {{- include "spearhead.containerSecurity" $root | nindent 6 }}
    resources: {{- include "spearhead.resources" . | nindent 6 }}
    volumeMounts:
      - {name: config, mountPath: /etc/spearhead/config, readOnly: true}
      - {name: models, mountPath: {{ $root.Values.model.mountPath }}, readOnly: true}
      - {name: tmp, mountPath: /tmp}
      {{- if $worker }}
      {{- if $values.shmSize }}
      - {name: shm, mountPath: /dev/shm}
      {{- end }}
      {{- end }}
      {{- range $name, $source := include "spearhead.secretVolumes" . | fromJson }}
      - {name: {{ $name }}, mountPath: /etc/spearhead/{{ $name }}, readOnly: true}
      {{- end }}
      {{- if and (not $worker) $values.latencyTable.existingConfigMap }}
      - {name: latency-table, mountPath: /etc/spearhead/latency-table, readOnly: true}
      {{- end }}
volumes:
  - name: config
    configMap:
      name: {{ include "spearhead.fullname" $root }}-{{ .component }}
  - name: models {{- include "spearhead.modelVolume" $root | nindent 4 }}
  - name: tmp
    emptyDir: {sizeLimit: {{ $values.tmpSize }}}
  {{- if $worker }}
  {{- if $values.shmSize }}
  - name: shm
    emptyDir: {medium: Memory, sizeLimit: {{ $values.shmSize }}}
  {{- end }}
  {{- end }}
  {{- range $name, $secret := include "spearhead.secretVolumes" . | fromJson }}
  - name: {{ $name }}
    secret: {secretName: {{ $secret }}, defaultMode: 0440}
  {{- end }}
  {{- if and (not $worker) $values.latencyTable.existingConfigMap }}
  - name: latency-table
    configMap: {name: {{ $values.latencyTable.existingConfigMap }}}
  {{- end }}
{{- end -}}

{{- define "spearhead.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
# A large volume is not walked through at every start.
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "spearhead.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Folders below /etc/spearhead and the secrets in them, as JSON: dict root, component. Whole folders, since a
file mounted by subPath never changes, and tokens are rotated. */}}
{{- define "spearhead.secretVolumes" -}}
{{- $values := .root.Values -}}
{{- $scheduler := eq .component "scheduler" -}}
{{- $secrets := dict -}}
{{- if and $scheduler $values.tls.public.enabled -}}{{- $_ := set $secrets "tls-public" $values.tls.public.existingSecret -}}{{- end -}}
{{- if $values.tls.internal.enabled -}}{{- $_ := set $secrets "tls-internal" $values.tls.internal.existingSecret -}}{{- end -}}
{{- if and $scheduler $values.auth.public.existingSecret -}}{{- $_ := set $secrets "tokens-public" $values.auth.public.existingSecret -}}{{- end -}}
{{- if $values.auth.internal.existingSecret -}}{{- $_ := set $secrets "tokens-internal" $values.auth.internal.existingSecret -}}{{- end -}}
{{- $secrets | toJson -}}
{{- end -}}

{{- define "spearhead.environment" -}}
{{- $values := index .root.Values .component -}}
{{- include "spearhead.cacheEnvironment" .root }}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.pod.name=$(POD_NAME),k8s.node.name=$(NODE_NAME),k8s.namespace.name={{ .root.Release.Namespace }},service.version={{ .root.Chart.AppVersion }},service.instance.id=$(POD_NAME)
{{- with .root.Values.telemetry.otlpHeaders }}
{{- if .existingSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom: {secretKeyRef: {name: {{ .existingSecret }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- range $name, $value := $values.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{/* Everything that libraries write goes to the one writable path. */}}
{{- define "spearhead.cacheEnvironment" -}}
- {name: HOME, value: /tmp}
- {name: XDG_CACHE_HOME, value: /tmp/.cache}
- {name: HF_HOME, value: /tmp/.cache/huggingface}
- {name: TRITON_CACHE_DIR, value: /tmp/.cache/triton}
- {name: TORCHINDUCTOR_CACHE_DIR, value: /tmp/.cache/inductor}
- {name: CUDA_CACHE_PATH, value: /tmp/.cache/cuda}
{{- end -}}

{{/* Probes of a service: dict root, component. The budget of a start is in seconds, ports are numbers. */}}
{{- define "spearhead.probes" -}}
{{- $values := index .root.Values .component -}}
{{- $probes := .root.Values.probes -}}
{{- $port := include "spearhead.probePort" . -}}
startupProbe:
  grpc: {port: {{ $port }}, service: startup}
  periodSeconds: 5
  timeoutSeconds: {{ $probes.timeoutSeconds }}
  failureThreshold: {{ divf $values.startupSeconds 5 | ceil | int }}
readinessProbe:
  grpc: {port: {{ $port }}, service: readiness}
  periodSeconds: {{ $probes.readiness.periodSeconds }}
  timeoutSeconds: {{ $probes.timeoutSeconds }}
  failureThreshold: {{ $probes.readiness.failureThreshold }}
livenessProbe:
  grpc: {port: {{ $port }}, service: liveness}
  periodSeconds: {{ $probes.liveness.periodSeconds }}
  timeoutSeconds: {{ $probes.timeoutSeconds }}
  failureThreshold: {{ $probes.liveness.failureThreshold }}
{{- end -}}

{{- define "spearhead.resources" -}}
{{- $values := index .root.Values .component -}}
{{- $resources := deepCopy $values.resources -}}
{{- if ne .component "scheduler" -}}
  {{- if gt (int $values.gpu.count) 0 -}}
    {{- $_ := set $resources "limits" (mergeOverwrite (dict) ($resources.limits | default dict) (dict $values.gpu.resource (mul (int $values.gpu.count) (include "spearhead.ranks" . | int)))) -}}
  {{- end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
