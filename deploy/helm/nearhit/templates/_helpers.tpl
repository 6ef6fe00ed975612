{{- define "nearhit.name" -}}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{- end }}
{{- define "nearhit.labels" -}}
app.kubernetes.io/name: nearhit
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "nearhit.selector" -}}
app.kubernetes.io/name: nearhit
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "nearhit.account" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "nearhit.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}
{{- define "nearhit.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}
{{- define "nearhit.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- define "nearhit.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
{{- define "nearhit.environment" -}}
- {name: NEARHIT_DATABASE_FILE, value: /run/secrets/nearhit/database}
- {name: NEARHIT_REDIS_FILE, value: /run/secrets/nearhit/redis}
- {name: NEARHIT_ADMIN_KEY_FILE, value: /run/secrets/nearhit/admin-key}
- {name: NEARHIT_SECRET_FILE, value: /run/secrets/nearhit/secret}
{{- range $name, $key := .Values.providerKeys }}
- {name: {{ $name }}_FILE, value: /run/secrets/nearhit/{{ $key }}}
{{- end }}
{{- end }}
