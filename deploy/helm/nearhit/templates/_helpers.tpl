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
{{- /* How long answers under way are waited for, in seconds: by drainSeconds, by server.drain_timeout, or as usual. */ -}}
{{- define "nearhit.drain" -}}
{{- $told := dig "server" "drain_timeout" nil .Values.config -}}
{{- $asked := .Values.drainSeconds -}}
{{- $seconds := 120 -}}
{{- if not (kindIs "invalid" $told) -}}
{{- $text := toString $told -}}
{{- if not (regexMatch "^[0-9]+(s|m|h)?$" $text) -}}
{{- fail (printf "config.server.drain_timeout: %q cannot be read here; write whole seconds, minutes or hours, as in 120s" $text) -}}
{{- end -}}
{{- $unit := regexFind "[smh]$" $text -}}
{{- $seconds = mul (int64 (regexFind "^[0-9]+" $text)) (ternary 3600 (ternary 60 1 (eq $unit "m")) (eq $unit "h")) -}}
{{- if and (not (kindIs "invalid" $asked)) (ne (int64 $asked) (int64 $seconds)) -}}
{{- fail (printf "drainSeconds (%d) and config.server.drain_timeout (%s) say different things; give one of them" (int64 $asked) $text) -}}
{{- end -}}
{{- else if not (kindIs "invalid" $asked) -}}
{{- $seconds = int64 $asked -}}
{{- end -}}
{{- $seconds -}}
{{- end }}
{{- define "nearhit.config" -}}
{{- $server := dict "server" (dict "drain_timeout" (printf "%ss" (include "nearhit.drain" .))) -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.config) $server) -}}
{{- end }}
