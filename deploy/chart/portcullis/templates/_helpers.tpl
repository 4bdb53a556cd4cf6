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

{{/*
What the clusters of config.clusters need in the cluster of the chart, as a JSON object of booleans. Clusters of
clusterDirectory and managementCluster are not in the values, and need nothing here.
The pod's ServiceAccount is used by clusters that impersonate without a kubeconfig; the user system:portcullis is seen by the API
servers of the other clusters, any of which may be the cluster of the chart.
*/}}
{{- define "portcullis.needs" -}}
{{- $needs := dict -}}
{{- range $cluster := default list .Values.config.clusters -}}
{{- $impersonates := eq (default "requestHeader" $cluster.identity) "impersonate" -}}
{{- $usesPod := and $impersonates (not $cluster.kubeconfig) -}}
{{- if $usesPod }}{{ $_ := set $needs "podToken" true }}{{ end -}}
{{- if eq $usesPod (eq $.Values.rbac.subject "serviceAccount") -}}
{{- /* A cluster's own key replaces that of the section; null restores the default. */ -}}
{{- $authentication := deepCopy (default dict $.Values.config.authentication) -}}
{{- range $key, $value := default dict $cluster.authentication }}{{ $_ := set $authentication $key $value }}{{ end -}}
{{- $admission := deepCopy (default dict $.Values.config.admission) -}}
{{- range $key, $value := default dict $cluster.admission }}{{ $_ := set $admission $key $value }}{{ end -}}
{{- $authorization := deepCopy (default dict $.Values.config.authorization) -}}
{{- range $key, $value := default dict $cluster.authorization }}{{ $_ := set $authorization $key $value }}{{ end -}}
{{- $audit := deepCopy (default dict $.Values.config.audit) -}}
{{- range $key, $value := default dict $cluster.audit }}{{ $_ := set $audit $key $value }}{{ end -}}
{{- $limits := deepCopy (default dict $.Values.config.limits) -}}
{{- range $key, $value := default dict $cluster.limits }}{{ $_ := set $limits $key $value }}{{ end -}}
{{- $decides := or $impersonates $admission.admissionControlConfigFile $authorization.authorizationMode $authorization.authorizationConfig $audit.auditPolicyFile $limits.maxRequestsInflight $limits.maxMutatingRequestsInflight -}}
{{- $impersonation := default (ternary "gateway" "backend" (not (empty $decides))) $cluster.impersonation -}}
{{- $tokens := or $authentication.serviceAccountIssuer $authentication.serviceAccountKeyFile -}}
{{- $webhooks := $admission.admissionControlConfigFile -}}
{{- $discovery := default "none" $cluster.endpointDiscovery -}}
{{- $several := or (gt (len (default list $cluster.endpoints)) 1) (ne $discovery "none") -}}
{{- range $need, $isNeeded := dict
  "impersonate" $impersonates
  "serviceAccountTokens" $tokens
  "impersonateServiceAccounts" (or $tokens $authentication.authenticationTokenWebhookConfigFile $authentication.requestheaderClientCAFile)
  "publishedKeys" (and $tokens (not $authentication.serviceAccountKeyFile))
  "accessReviews" (or $webhooks (ne $impersonation "backend"))
  "namespaces" $webhooks
  "kubeSystem" (and $several (or $impersonates $cluster.requestheaderUsernameHeaders))
  "authenticationReader" (not (or $usesPod $cluster.requestheaderUsernameHeaders))
  "endpointSlices" (eq $discovery "kubernetes")
-}}
{{- if $isNeeded }}{{ $_ := set $needs $need true }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $needs -}}
{{- end -}}

{{/* The same, after the values of rbac that are not `auto`. */}}
{{- define "portcullis.permissions" -}}
{{- $needs := include "portcullis.needs" . | fromJson -}}
{{- range $value, $keys := dict
  "serviceAccountTokens" (list "serviceAccountTokens" "publishedKeys")
  "accessReviews" (list "accessReviews")
  "namespaces" (list "namespaces" "kubeSystem")
  "authenticationReader" (list "authenticationReader")
  "endpointSlices" (list "endpointSlices")
  "impersonate" (list "impersonate")
  "impersonateServiceAccounts" (list "impersonateServiceAccounts")
-}}
{{- $given := get $.Values.rbac $value -}}
{{- if kindIs "bool" $given }}{{ range $keys }}{{ $_ := set $needs . $given }}{{ end }}{{ end -}}
{{- end -}}
{{- if and (not (kindIs "bool" .Values.rbac.impersonateServiceAccounts)) (get $needs "serviceAccountTokens") -}}
{{- $_ := set $needs "impersonateServiceAccounts" true -}}
{{- end -}}
{{- if not (get $needs "impersonate") }}{{ $_ := unset $needs "impersonateServiceAccounts" }}{{ end -}}
{{- toJson $needs -}}
{{- end -}}

{{/* Whether the pod mounts the token of its ServiceAccount: `true`, or empty. */}}
{{- define "portcullis.podToken" -}}
{{- $mount := .Values.serviceAccount.automount -}}
{{- if kindIs "bool" $mount -}}
{{- if $mount }}true{{ end -}}
{{- else if (include "portcullis.needs" . | fromJson).podToken -}}
true
{{- else if and (eq .Values.rbac.subject "serviceAccount") (eq (toString .Values.rbac.impersonate) "true") -}}
true
{{- end -}}
{{- end -}}

{{/* The egress rules. */}}
{{- define "portcullis.egress" -}}
{{- if not (kindIs "invalid" .Values.networkPolicy.egress) -}}
{{- /* A flow sequence needs a deeper indentation than the key. */ -}}
{{- empty .Values.networkPolicy.egress | ternary "  []" (toYaml .Values.networkPolicy.egress) -}}
{{- else if .Values.config.managementCluster -}}
{{- fail "networkPolicy.egress is required with config.managementCluster: the owners of its Secrets choose the addresses to which the gateway connects. List DNS, the management cluster, the issuers, and the networks in which API servers may be; or set networkPolicy.enabled=false if another policy bounds them" -}}
{{- else -}}
- ports:
  - port: 53
    protocol: UDP
  - port: 53
    protocol: TCP
- ports:
  - port: 443
    protocol: TCP
  - port: 6443
    protocol: TCP
{{- end -}}
{{- end -}}

{{- define "portcullis.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
privileged: false
readOnlyRootFilesystem: true
{{- end -}}
