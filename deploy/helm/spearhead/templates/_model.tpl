{{/* Where the models are, and how they get there. */}}
{{- define "spearhead.modelVolume" -}}
{{- $volume := .Values.model.volume -}}
{{- if $volume.emptyDir.enabled -}}
emptyDir: {sizeLimit: {{ $volume.emptyDir.sizeLimit }}}
{{- else if $volume.hostPath -}}
hostPath: {path: {{ $volume.hostPath | quote }}, type: Directory}
{{- else -}}
persistentVolumeClaim: {claimName: {{ include "spearhead.claimName" . }}}
{{- end -}}
{{- end -}}

{{/*
The init container with the models: dict root, component. On a volume that pods share, the one verify pod prepares
and the others wait for its mark; with a volume of its own each pod prepares. The mark carries a digest of the
settings, so that changed ones prepare again.
*/}}
{{- define "spearhead.prepareContainer" -}}
{{- $root := .root -}}
{{- $model := $root.Values.model -}}
{{- $prepare := $model.prepare -}}
{{- if ne $prepare.kind "none" -}}
{{- $prepares := or $model.volume.emptyDir.enabled (eq .component "verify") -}}
{{- $mark := printf "%s/.prepared-%s" $model.mountPath (list $prepare.kind $prepare.image $prepare.source $prepare.scheme $prepare.method $model.target | toJson | sha256sum | trunc 12) -}}
- name: {{ ternary "prepare-models" "wait-for-models" $prepares }}
  image: {{ ternary $prepare.image (include "spearhead.image" .) (and $prepares (eq $prepare.kind "copy")) | quote }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  command: [sh, -euc]
  args:
    - | {{- include (ternary "spearhead.prepareScript" "spearhead.waitScript" $prepares) . | nindent 6 }}
  env: {{- include "spearhead.cacheEnvironment" $root | nindent 4 }}
    - {name: MARK, value: {{ $mark | quote }}}
    - {name: SOURCE, value: {{ $prepare.source | quote }}}
    - {name: MODELS, value: {{ $model.mountPath | quote }}}
    - {name: TARGET, value: {{ printf "%s/%s" $model.mountPath $model.target | quote }}}
    {{- if and $prepares $prepare.hubToken.existingSecret }}
    - name: HF_TOKEN
      valueFrom: {secretKeyRef: {name: {{ $prepare.hubToken.existingSecret }}, key: {{ $prepare.hubToken.key }}}}
    {{- end }}
  securityContext: {{- include "spearhead.containerSecurity" $root | nindent 4 }}
  resources: {{- toYaml $prepare.resources | nindent 4 }}
  volumeMounts:
    - {name: models, mountPath: {{ $model.mountPath }}, readOnly: {{ not $prepares }}}
    - {name: tmp, mountPath: /tmp}
{{- end -}}
{{- end -}}

{{- define "spearhead.prepareScript" -}}
{{- $prepare := .root.Values.model.prepare -}}
if test -e "$MARK"; then exit 0; fi
{{- if eq $prepare.kind "copy" }}
cp -R "$SOURCE/." "$MODELS/"
{{- else }}
export HF_HOME="$MODELS/.huggingface"
if test -e "$MODELS/$SOURCE"; then SOURCE="$MODELS/$SOURCE"; fi
if test -e "$TARGET" && test ! -e "$MARK.started"; then
  echo "$TARGET exists and was made with other settings; name another model.target, or remove it" >&2
  exit 1
fi
touch "$MARK.started"
test -e "$TARGET" || python -m spearhead.cli quantize --scheme {{ $prepare.scheme }} --method {{ $prepare.method }} "$SOURCE" "$TARGET"
{{- end }}
touch "$MARK"
{{- end -}}

{{- define "spearhead.waitScript" -}}
until test -e "$MARK"; do echo "waiting for the verify pod to prepare the models"; sleep 5; done
{{- end -}}
