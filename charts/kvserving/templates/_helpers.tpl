{{- define "kvserving.name" -}}
{{- .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "kvserving.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "kvserving.name" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "kvserving.selectorLabels" -}}
app.kubernetes.io/name: kvserving-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "kvserving.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{ include "kvserving.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: kvserving
{{- end }}

{{- /* What the operator does to the objects of a namespace, and nothing more. */ -}}
{{- define "kvserving.rules" -}}
- apiGroups: [kvserving.dev]
  resources: [kvservings]
  verbs: [get, list, watch, patch]
# Owner references that block deletion are allowed only to who may set finalizers of the owner.
- apiGroups: [kvserving.dev]
  resources: [kvservings/finalizers]
  verbs: [update]
- apiGroups: [kvserving.dev]
  resources: [kvrollbackpolicies]
  verbs: [get, list, watch]
- apiGroups: [kvserving.dev]
  resources: [kvtrials]
  verbs: [list, watch, create, delete]
- apiGroups: [kvserving.dev]
  resources: [kvservings/status, kvrollbackpolicies/status, kvtrials/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
# Engines come from Deployments, of which that of a trial goes with it. What is created and deleted here besides are
# pods that check a template.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, create, delete]
# The readiness gate by which promoted live settings reach a pod before it serves.
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [services]
  verbs: [list, watch, create, patch]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [create, patch]
# The operator's memory of each KVServing, and probe sets.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create, patch]
# Whether the claim of a compile cache exists, before pods are replaced by some that wait for it.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
# The token of each engine's runtime API, and Secrets that a KVServing names; neither list nor watch.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- if .Values.gateway.enabled }}
# Routes of KVServings with spec.routing, and Envoy Gateway's policies by which they keep sessions.
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, create, patch, delete]
- apiGroups: [gateway.envoyproxy.io]
  resources: [backendtrafficpolicies]
  verbs: [get, create, patch, delete]
# Whether an arm of a trial has pods that answer, before requests are sent there.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list]
# The label by which a pod changes arms, and the arms' Services, which go with the route.
- apiGroups: [""]
  resources: [pods]
  verbs: [patch]
- apiGroups: [""]
  resources: [services]
  verbs: [delete]
{{- end }}
{{- end }}
