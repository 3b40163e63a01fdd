{{- define "standalone-cinder.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The release's name, which need not be repeated if it is the chart's. */}}
{{- define "standalone-cinder.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "standalone-cinder.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "standalone-cinder.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "standalone-cinder.selectorLabels" -}}
app.kubernetes.io/name: {{ include "standalone-cinder.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "standalone-cinder.labels" -}}
{{ include "standalone-cinder.selectorLabels" . }}
app.kubernetes.io/component: provisioner
app.kubernetes.io/part-of: standalone-cinder
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Other labels than those of the replicas, which selectors match. */}}
{{- define "standalone-cinder.nodeSelectorLabels" -}}
app.kubernetes.io/name: {{ include "standalone-cinder.name" . }}-node
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "standalone-cinder.nodeLabels" -}}
{{ include "standalone-cinder.nodeSelectorLabels" . }}
app.kubernetes.io/component: node
app.kubernetes.io/part-of: standalone-cinder
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* A sidecar of the CSI driver: its name, its arguments, and its part of the values. */}}
{{- define "standalone-cinder.sidecar" -}}
- name: {{ .name }}
  {{- $image := .values.image }}
  {{- if $image.digest }}
  image: {{ printf "%s@%s" $image.repository $image.digest }}
  {{- else }}
  image: {{ printf "%s:%s" $image.repository $image.tag }}
  {{- end }}
  imagePullPolicy: {{ .pullPolicy }}
  args:
    - --leader-election=false
    - --csi-address=/csi/csi.sock
    - --kube-api-qps=100
    - --kube-api-burst=200
    - --timeout=90s
    - --retry-interval-max=30s
    {{- range .args }}
    - {{ . }}
    {{- end }}
  resources:
    {{- toYaml .values.resources | nindent 4 }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
  volumeMounts:
    - name: csi
      mountPath: /csi
    - name: token
      mountPath: /var/run/secrets/kubernetes.io/serviceaccount
      readOnly: true
{{- end }}

{{- define "standalone-cinder.image" -}}
{{- $image := .Values.image }}
{{- if $image.digest }}
{{- printf "%s@%s" $image.repository $image.digest }}
{{- else }}
{{- printf "%s:%s" $image.repository (default (printf "v%s" .Chart.AppVersion) $image.tag) }}
{{- end }}
{{- end }}

{{- define "standalone-cinder.policyConfigMap" -}}
{{- default (printf "%s-policy" (include "standalone-cinder.fullname" .)) .Values.policy.existingConfigMap }}
{{- end }}

{{/* The name of the Lease, and the prefix of what the program keeps for itself. */}}
{{- define "standalone-cinder.lease" -}}
{{- .Values.provisionerName | replace "/" "-" }}
{{- end }}

{{/* The namespace of the DaemonSet. */}}
{{- define "standalone-cinder.nodeNamespace" -}}
{{- default (printf "%s-node" (include "standalone-cinder.fullname" .)) .Values.csi.node.namespace }}
{{- end }}

{{/* The schema of a quota in a TenantStatus. */}}
{{- define "standalone-cinder.quotaSchema" -}}
type: object
properties:
  {{- range list "volumes" "gigabytes" "snapshots" "snapshotGigabytes" "backups" "backupGigabytes" }}
  {{ . }}: {type: object, required: [used], properties: {used: {type: integer, format: int64, minimum: 0}, hard: {type: integer, format: int64, minimum: 0}}}
  {{- end }}
{{- end }}

{{/* A list of strings in CEL. */}}
{{- define "standalone-cinder.celList" -}}
[{{ range $i, $text := . }}{{ if $i }}, {{ end }}{{ squote $text }}{{ end }}]
{{- end }}

{{/*
The groups of alerts.yaml, changed as monitoring.prometheusRule says.
*/}}
{{- define "standalone-cinder.alerts" -}}
{{- $values := .values }}
{{- $disabled := default list $values.disabled }}
{{- $rules := default dict $values.rules }}
{{- $known := list }}
{{- range $group := .groups }}
{{- $kept := list }}
{{- range $rule := $group.rules }}
{{- $name := default "" $rule.alert }}
{{- $known = append $known $name }}
{{- with $values.runbookURL }}
{{- $_ := set $rule.annotations "runbook_url" (printf "%s#%s" . (lower $name)) }}
{{- end }}
{{- if not (has $name $disabled) }}
{{- $kept = append $kept (mergeOverwrite $rule (default dict (get $rules $name))) }}
{{- end }}
{{- end }}
{{- with $kept }}
{{ toYaml (list (dict "name" $group.name "rules" .)) }}
{{- end }}
{{- end }}
{{- range concat $disabled (keys $rules | sortAlpha) }}
{{- if not (has . $known) }}
{{- fail (printf "monitoring.prometheusRule: there is no alert %s; docs/runbooks.md lists them" .) }}
{{- end }}
{{- end }}
{{- end }}
