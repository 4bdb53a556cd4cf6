// Command policies answers with the code with which kube-apiserver reads the manifests of admission policies, runs the validating
// ones, and evaluates the mutations of the others.
//
// It reads one question per line as JSON and writes one line for each.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/generic"
	"k8s.io/apiserver/pkg/admission/plugin/policy/matching"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/admission/plugin/policy/manifest/loader"

	"portcullis.dev/tests/go/lines"
	"portcullis.dev/tests/go/patches"
)

type question struct {
	// Manifests is the content of the folder's only file.
	Manifests string `json:"manifests"`
	// Mutating says that the folder is that of mutating policies.
	Mutating bool `json:"mutating"`
	// Namespace is the namespace of the requests; absent if there is none.
	Namespace *corev1.Namespace `json:"namespace"`
	Requests  []request         `json:"requests"`
}

type request struct {
	Operation   string                      `json:"operation"`
	Kind        metav1.GroupVersionKind     `json:"kind"`
	Resource    metav1.GroupVersionResource `json:"resource"`
	Subresource string                      `json:"subresource"`
	Name        string                      `json:"name"`
	Namespace   string                      `json:"namespace"`
	Username    string                      `json:"username"`
	Groups      []string                    `json:"groups"`
	DryRun      bool                        `json:"dryRun"`
	Object      json.RawMessage             `json:"object"`
	OldObject   json.RawMessage             `json:"oldObject"`
}

type answer struct {
	// Error is that of reading the manifests.
	Error    string    `json:"error"`
	Outcomes []outcome `json:"outcomes"`
	// Patches are those of each request and each mutation.
	Patches [][]patched `json:"patches"`
}

// patched is the result of one mutation.
type patched struct {
	// Error is that of the expression.
	Error string `json:"error"`
	// Misfit is why the value is none of a patch.
	Misfit string `json:"misfit"`
	Value  any    `json:"value"`
	// Left is what is left of the budget.
	Left int64 `json:"left"`
}

type outcome struct {
	Status      *metav1.Status    `json:"status"`
	Warnings    []string          `json:"warnings"`
	Annotations map[string]string `json:"annotations"`
}

// recorded keeps the audit annotations of a request.
type recorded struct {
	admission.Attributes
	annotations map[string]string
}

func (r *recorded) AddAnnotation(key, value string) error {
	if err := r.Attributes.AddAnnotation(key, value); err != nil {
		return err
	}
	if _, known := r.annotations[key]; !known {
		r.annotations[key] = value
	}
	return nil
}

type warnings struct{ texts *[]string }

func (w warnings) AddWarning(_, text string) { *w.texts = append(*w.texts, text) }

// mayGet is an authorizer that allows to get.
type mayGet struct{}

func (mayGet) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() == "get" {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionDeny, "only get", nil
}

func main() {
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	lines.Each(func(q question) any { return ask(q) })
}

func ask(q question) answer {
	folder, err := os.MkdirTemp("", "policies")
	if err != nil {
		return answer{Error: err.Error()}
	}
	defer os.RemoveAll(folder)
	if err := os.WriteFile(filepath.Join(folder, "m.yaml"), []byte(q.Manifests), 0o600); err != nil {
		return answer{Error: err.Error()}
	}
	if q.Mutating {
		return askMutating(q, folder)
	}
	loaded, err := loader.LoadValidatingManifestsFromDirectory(folder)
	if err != nil {
		return answer{Error: strings.ReplaceAll(err.Error(), folder+"/", "")}
	}
	bindings := map[string][]*validating.PolicyBinding{}
	for _, binding := range loaded.Bindings {
		bindings[binding.Spec.PolicyName] = append(bindings[binding.Spec.PolicyName], binding)
	}
	var hooks []validating.PolicyHook
	for _, policy := range loaded.Policies {
		hooks = append(hooks, validating.PolicyHook{Policy: policy, Bindings: bindings[policy.Name], Evaluator: compile(policy)})
	}
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	client := fake.NewSimpleClientset()
	if q.Namespace != nil {
		_ = indexer.Add(q.Namespace)
	}
	matcher := matching.NewMatcher(corelisters.NewNamespaceLister(indexer), client)
	dispatcher := validating.NewDispatcher(mayGet{}, generic.NewPolicyMatcher(matcher))
	result := answer{}
	for _, r := range q.Requests {
		result.Outcomes = append(result.Outcomes, dispatch(dispatcher, hooks, r))
	}
	return result
}

func askMutating(q question, folder string) answer {
	loaded, err := loader.LoadMutatingManifestsFromDirectory(folder)
	if err != nil {
		return answer{Error: strings.ReplaceAll(err.Error(), folder+"/", "")}
	}
	result := answer{}
	for _, r := range q.Requests {
		all := []patched{}
		for _, policy := range loaded.Policies {
			all = append(all, evaluate(policy, r, q.Namespace)...)
		}
		result.Patches = append(result.Patches, all)
	}
	return result
}

// evaluate does with the mutations of a policy what the plugin does, other than to apply their patches.
func evaluate(policy *admissionregistrationv1.MutatingAdmissionPolicy, r request, namespace *corev1.Namespace) []patched {
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		panic(err)
	}
	options := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	var variables []cel.NamedExpressionAccessor
	for _, variable := range policy.Spec.Variables {
		variables = append(variables, &validating.Variable{Name: variable.Name, Expression: variable.Expression})
	}
	compiler.CompileAndStoreVariables(variables, options, environment.StoredExpressions)
	options.HasPatchTypes = true
	kind := schema.GroupVersionKind(r.Kind)
	info := &user.DefaultInfo{Name: r.Username, Groups: r.Groups}
	attributes := admission.NewAttributesRecord(object(r.Object), object(r.OldObject), kind, r.Namespace, r.Name,
		schema.GroupVersionResource(r.Resource), r.Subresource, admission.Operation(r.Operation), nil, r.DryRun, info)
	versioned, err := admission.NewVersionedAttributes(attributes, kind, nil)
	if err != nil {
		panic(err)
	}
	of := cel.CreateAdmissionRequest(attributes, r.Resource, r.Kind)
	ctx := compiler.CreateContext(context.Background())
	results := []patched{}
	for _, mutation := range policy.Spec.Mutations {
		var accessor cel.ExpressionAccessor
		show := patches.Merged
		if mutation.PatchType == admissionregistrationv1.PatchTypeJSONPatch {
			accessor, show = &patch.JSONPatchCondition{Expression: mutation.JSONPatch.Expression}, patches.Operations
		} else {
			accessor = &patch.ApplyConfigurationCondition{Expression: mutation.ApplyConfiguration.Expression}
		}
		evaluator := compiler.CompileMutatingEvaluator(accessor, options, environment.StoredExpressions)
		inputs := cel.OptionalVariableBindings{Authorizer: mayGet{}}
		found, left, err := evaluator.ForInput(ctx, versioned, of, inputs, namespace, celconfig.RuntimeCELCostBudget)
		if err == nil {
			err = found.Error
		}
		if err != nil {
			results = append(results, patched{Error: err.Error(), Left: left})
			continue
		}
		value, err := show(found.EvalResult)
		if err != nil {
			results = append(results, patched{Misfit: err.Error(), Left: left})
			continue
		}
		results = append(results, patched{Value: value, Left: left})
	}
	return results
}

func dispatch(dispatcher generic.Dispatcher[validating.PolicyHook], hooks []validating.PolicyHook, r request) outcome {
	info := &user.DefaultInfo{Name: r.Username, Groups: r.Groups}
	attributes := &recorded{
		Attributes: admission.NewAttributesRecord(object(r.Object), object(r.OldObject),
			schema.GroupVersionKind(r.Kind), r.Namespace, r.Name, schema.GroupVersionResource(r.Resource), r.Subresource,
			admission.Operation(r.Operation), nil, r.DryRun, info),
		annotations: map[string]string{},
	}
	texts := []string{}
	ctx := warning.WithWarningRecorder(context.Background(), warnings{&texts})
	err := dispatcher.Dispatch(ctx, attributes, admission.NewObjectInterfacesFromScheme(runtime.NewScheme()), hooks)
	found := outcome{Warnings: texts, Annotations: attributes.annotations}
	if err != nil {
		var status apierrors.APIStatus
		if s, ok := err.(apierrors.APIStatus); ok {
			status = s
			copied := status.Status()
			found.Status = &copied
		} else {
			found.Status = &metav1.Status{Message: fmt.Sprintf("not a status: %v", err)}
		}
	}
	return found
}

func object(text json.RawMessage) runtime.Object {
	if len(text) == 0 || string(text) == "null" {
		return nil
	}
	fields := map[string]interface{}{}
	if err := utiljson.Unmarshal(text, &fields); err != nil {
		panic(err)
	}
	return &unstructured.Unstructured{Object: fields}
}

// compile does what the plugin does when it has loaded a policy.
func compile(policy *admissionregistrationv1.ValidatingAdmissionPolicy) validating.Validator {
	spec := &policy.Spec
	all := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		panic(err)
	}
	var variables []cel.NamedExpressionAccessor
	for _, variable := range spec.Variables {
		variables = append(variables, &validating.Variable{Name: variable.Name, Expression: variable.Expression})
	}
	compiler.CompileAndStoreVariables(variables, all, environment.StoredExpressions)
	var matcher matchconditions.Matcher
	if len(spec.MatchConditions) > 0 {
		var conditions []cel.ExpressionAccessor
		for i := range spec.MatchConditions {
			conditions = append(conditions, (*matchconditions.MatchCondition)(&spec.MatchConditions[i]))
		}
		evaluator := compiler.CompileCondition(conditions, all, environment.StoredExpressions)
		matcher = matchconditions.NewMatcher(evaluator, spec.FailurePolicy, "policy", "validate", policy.Name)
	}
	validations := make([]cel.ExpressionAccessor, len(spec.Validations))
	messages := make([]cel.ExpressionAccessor, len(spec.Validations))
	for i, validation := range spec.Validations {
		validations[i] = &validating.ValidationCondition{
			Expression: validation.Expression, Message: validation.Message, Reason: validation.Reason,
		}
		if validation.MessageExpression != "" {
			messages[i] = &validating.MessageExpressionCondition{MessageExpression: validation.MessageExpression}
		}
	}
	var annotations []cel.ExpressionAccessor
	for _, annotation := range spec.AuditAnnotations {
		annotations = append(annotations, &validating.AuditAnnotationCondition{
			Key: annotation.Key, ValueExpression: annotation.ValueExpression,
		})
	}
	return validating.NewValidator(
		compiler.CompileCondition(validations, all, environment.StoredExpressions),
		matcher,
		compiler.CompileCondition(annotations, all, environment.StoredExpressions),
		compiler.CompileCondition(messages, cel.OptionalVariableDeclarations{}, environment.StoredExpressions),
		spec.FailurePolicy,
		nil,
	)
}
