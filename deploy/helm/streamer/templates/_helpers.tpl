{{- define "streamer.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "streamer.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "streamer.labels" -}}
{{ include "streamer.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "streamer.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "streamer.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- define "streamer.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "streamer.httpPort" -}}
{{- $http := regexFind `(?m)^\s*http\s*=\s*["'][^"'\n]*["']` .Values.config | regexFind `["'][^"']*["']` | trimAll `"'` -}}
{{- if eq $http "off" }}
{{- else if regexMatch `^(127\.|localhost:|\[::1\])` ($http | default "127.0.0.1:9464") -}}
{{- fail "config serves HTTP on loopback alone, where no probe reaches it: set http = \"0.0.0.0:9464\" or \"off\" below [service]" }}
{{- else -}}
{{ regexFind `[0-9]+$` $http }}
{{- end }}
{{- end }}

{{- define "streamer.checkDatasets" -}}
{{- if not (or .Values.serveEveryUrl (regexMatch `(?m)^\s*(\[\[\s*datasets\s*\]\]|datasets\s*=)` .Values.config)) }}
{{- fail "config names no [[datasets]]: every pod that may connect could read whatever the engines reach; name what they serve, or set serveEveryUrl" }}
{{- end }}
{{- end }}
