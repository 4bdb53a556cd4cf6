{{- define "portcullis.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "portcullis.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "portcullis.labels" -}}
{{ include "portcullis.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "portcullis.serviceAccount" -}}
{{- $default := ternary (include "portcullis.fullname" .) "default" .Values.serviceAccount.create -}}
{{- default $default .Values.serviceAccount.name -}}
{{- end -}}

{{- define "portcullis.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "portcullis.tlsSecret" -}}
{{- if eq .Values.tls.mode "certManager" -}}
{{- default (printf "%s-tls" (include "portcullis.fullname" .)) .Values.tls.secretName -}}
{{- else -}}
{{- .Values.tls.secretName -}}
{{- end -}}
{{- end -}}

{{- define "portcullis.dnsNames" -}}
{{- $service := include "portcullis.fullname" . -}}
{{- $own := list $service (printf "%s.%s" $service .Release.Namespace) (printf "%s.%s.svc" $service .Release.Namespace) -}}
{{- concat .Values.tls.dnsNames $own | uniq | toJson -}}
{{- end -}}

{{/* The configuration file: the values, and the keys that the chart sets. */}}
{{- define "portcullis.config" -}}
{{- $config := dict "apiVersion" "portcullis.dev/v1alpha1" "kind" "GatewayConfiguration" -}}
{{- range $section, $values := .Values.config -}}
{{- if $values -}}{{- $_ := set $config $section (deepCopy $values) -}}{{- end -}}
{{- end -}}
{{- $serving := dict "bindAddress" "0.0.0.0" "securePort" 6443 "tlsCertFile" "../tls/tls.crt" "tlsPrivateKeyFile" "../tls/tls.key" -}}
{{- $_ := set $config "serving" (merge $serving (default dict $config.serving)) -}}
{{- $operation := dict "metricsBindAddress" "0.0.0.0:9094"
  "shutdownDelayDuration" (printf "%ds" (int .Values.shutdown.delaySeconds))
  "shutdownGracePeriod" (printf "%ds" (int .Values.shutdown.gracePeriodSeconds)) -}}
{{- $_ := set $config "operation" (merge $operation (default dict $config.operation) (dict "loggingFormat" "json")) -}}
{{- toYaml $config -}}
{{- end -}}

{{/* The keys that take effect only at the next start. */}}
{{- define "portcullis.restartKeys" -}}
{{- $operation := default dict .Values.config.operation -}}
{{- pick (default dict .Values.config.serving) "maxConnections" "maxConnectionsPerTenant" | toJson -}}
{{- pick $operation "workers" "v" "loggingFormat" "tracingConfigFile" | toJson -}}
{{- with (default dict .Values.config.page).bindAddress -}}{{- . -}}{{- end -}}
{{- end -}}

{{/* The port of the page, if there is one. */}}
{{- define "portcullis.pagePort" -}}
{{- $page := default dict .Values.config.page -}}
{{- with $page.bindAddress -}}
{{- if and (gt (int $.Values.replicas) 1) (not $page.cookieKeyFile) -}}
{{- fail "config.page.cookieKeyFile is required with several replicas: a login may begin at one and end at another" -}}
{{- end -}}
{{- regexFind "[0-9]+$" . -}}
{{- end -}}
{{- end -}}

{{- define "portcullis.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
privileged: false
readOnlyRootFilesystem: true
{{- end -}}
