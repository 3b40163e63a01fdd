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

{{/* The port of the probes, which have no login. */}}
{{- define "standalone-cinder.healthPort" -}}
{{- if .Values.webConfig.existingSecret }}health{{ else }}http{{ end }}
{{- end }}

{{/* The name of the Lease, and the prefix of what the program keeps for itself. */}}
{{- define "standalone-cinder.lease" -}}
{{- .Values.provisionerName | replace "/" "-" }}
{{- end }}
