{{- define "promptgate.name" -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- end -}}

{{/* The label `name` is the job of Prometheus, which alerts and dashboard expect. */}}
{{- define "promptgate.selector" -}}
app.kubernetes.io/name: promptgate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "promptgate.labels" -}}
{{ include "promptgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "promptgate.storeSelector" -}}
app.kubernetes.io/name: promptgate-store
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "promptgate.tag" -}}{{ .Values.image.tag | default .Chart.AppVersion }}{{- end -}}

{{- define "promptgate.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ include "promptgate.tag" $ }}{{ end }}
{{- end -}}
{{- end -}}

{{/* One for each version: pods of the version before keep the file that they can read, also in a rollback. */}}
{{- define "promptgate.configMap" -}}
{{ include "promptgate.name" . }}-{{ .Values.image.digest | trimPrefix "sha256:" | trunc 12 | default (include "promptgate.tag" .) | lower | replace "_" "-" | replace "+" "-" }}
{{- end -}}

{{- define "promptgate.secret" -}}{{ .Values.secrets.existing | default (include "promptgate.name" .) }}{{- end -}}

{{- define "promptgate.file" -}}{{ dict "file" (printf "/run/secrets/promptgate/%s" .) | toJson }}{{- end -}}

{{/* The configuration as a tree: what the chart sets, and over it `config`, `upstreams` and `publicUrl`. */}}
{{- define "promptgate.config" -}}
{{- $state := "/var/lib/promptgate" -}}
{{- $limits := dict "pre_drain" (printf "%ds" (int .Values.preDrain)) "grace" (printf "%ds" (int .Values.grace)) -}}
{{- $tree := dict
    "server" (dict "listen" "0.0.0.0:8080" "public_url" .Values.publicUrl "limits" $limits
      "seal_key" (include "promptgate.file" "seal-key" | fromJson))
    "admin" (dict "listen" "0.0.0.0:9877" "token" (include "promptgate.file" "admin-token" | fromJson)
      "usage" (dict "path" (printf "%s/usage" $state)))
    "audit" (dict "path" (printf "%s/audit" $state) "key" (include "promptgate.file" "audit-key" | fromJson))
    "logins" (dict "path" (printf "%s/logins" $state))
    "upstreams" (dict) -}}
{{- if .Values.prompts -}}
{{- $_ := set $tree.upstreams "library" (dict "transport" "library" "path" "/prompts") -}}
{{- end -}}
{{- if .Values.store.enabled -}}
{{- $_ := set $tree "cluster" (dict "store" (printf "redis://%s-store:6379" (include "promptgate.name" .))
    "username" "promptgate" "password" (include "promptgate.file" "store-password" | fromJson)) -}}
{{- end -}}
{{- $tree = mustMergeOverwrite $tree (deepCopy .Values.config) (dict "upstreams" (deepCopy .Values.upstreams)) -}}
{{- range $tree.upstreams -}}
{{- if and (has .transport (list "git" "mlflow" "phoenix" "langfuse")) (not (hasKey . "state")) -}}
{{- $_ := set . "state" (printf "%s/sources" $state) -}}
{{- end -}}
{{- end -}}
{{/* The log may take three quarters of the volume; the index of usage and kept lists are beside it. */}}
{{- $size := .Values.persistence.size -}}
{{- $mebibytes := mul (regexFind "^[0-9]+" $size) (get (dict "Mi" 1 "Gi" 1024 "Ti" 1048576) (regexFind "[A-Z]i$" $size)) -}}
{{- if not (hasKey $tree.audit "keep_size") -}}
{{- $_ := set $tree.audit "keep_size" (printf "%dMiB" (div (mul $mebibytes 3) 4)) -}}
{{- end -}}
{{- $auth := dig "auth" (dict) $tree -}}
{{- if not (or $auth.api_keys $auth.jwt $tree.server.tls $tree.server.insecure) -}}
{{- fail "config must authenticate callers: auth.api_keys, auth.jwt or server.tls, or server.insecure: true behind a proxy that does" -}}
{{- end -}}
{{- toJson $tree -}}
{{- end -}}

{{- define "promptgate.key" -}}{{ if regexMatch "^[A-Za-z0-9_-]+$" . }}{{ . }}{{ else }}{{ toJson . }}{{ end }}{{- end -}}

{{/* A value of TOML. Strings and numbers of JSON are those of TOML. */}}
{{- define "promptgate.value" -}}
{{- $items := list -}}
{{- if kindIs "map" . -}}
{{- range $key, $value := . -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $items = append $items (printf "%s = %s" (include "promptgate.key" $key) (include "promptgate.value" $value)) -}}
{{- end -}}
{{- end -}}
{ {{ join ", " $items }} }
{{- else if kindIs "slice" . -}}
{{- range . -}}{{- $items = append $items (include "promptgate.value" .) -}}{{- end -}}
[{{ join ", " $items }}]
{{- else -}}
{{- toJson . -}}
{{- end -}}
{{- end -}}

{{/* gateway.toml: each table with its values, and then each of its tables. */}}
{{- define "promptgate.toml" -}}
{{- range $name, $table := . }}
{{- if kindIs "map" $table }}
[{{ $name }}]
{{- range $key, $value := $table }}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value)) }}
{{ include "promptgate.key" $key }} = {{ include "promptgate.value" $value }}
{{- end }}
{{- end }}
{{- range $key, $value := $table }}
{{- if kindIs "map" $value }}
[{{ $name }}.{{ include "promptgate.key" $key }}]
{{- range $inner, $content := $value }}
{{- if not (kindIs "invalid" $content) }}
{{ include "promptgate.key" $inner }} = {{ include "promptgate.value" $content }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- else }}
{{- range $table }}
[[{{ $name }}]]
{{- range $key, $value := . }}
{{ include "promptgate.key" $key }} = {{ include "promptgate.value" $value }}
{{- end }}
{{- end }}
{{- end }}
{{ end }}
{{- end -}}
