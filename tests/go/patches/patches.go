// Package patches shows the patches that kube-apiserver's code makes of the expressions of mutating policies, before it applies
// them.
package patches

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unsafe" // for go:linkname: the operations of a JSON patch are read by the function that kube-apiserver uses

	"github.com/google/cel-go/common/types/ref"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

//go:linkname evaluatePatchExpression k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch.(*jsonPatcher).evaluatePatchExpression
func evaluatePatchExpression(unsafe.Pointer, context.Context, cel.MutatingEvaluator, int64, patch.Request, *admissionv1.AdmissionRequest) (jsonpatch.Patch, int64, error)

// Operations are those of a JSON patch.
func Operations(value ref.Val) (any, error) {
	operations, _, err := evaluatePatchExpression(nil, context.Background(), &evaluated{value: value}, 0, patch.Request{}, nil)
	if err != nil || len(operations) == 0 {
		return []any{}, err
	}
	for _, operation := range operations {
		for field, value := range operation {
			// Some characters are quoted as in Go; the operation then fails when it is applied.
			if !json.Valid(*value) {
				return nil, fmt.Errorf("foreign: %s of %s", field, *value)
			}
		}
	}
	return operations, nil
}

// Merged is what kube-apiserver merges into an object for an apply configuration.
func Merged(value ref.Val) (any, error) {
	kept := &evaluated{value: value}
	kind := schema.GroupVersionKind{Group: "group", Version: "v1", Kind: "Kind"}
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetGroupVersionKind(kind)
	attributes := admission.NewAttributesRecord(object, nil, kind, "", "", schema.GroupVersionResource{}, "", admission.Create, nil, false, nil)
	versioned, err := admission.NewVersionedAttributes(attributes, kind, nil)
	if err != nil {
		return nil, err
	}
	request := patch.Request{VersionedAttributes: versioned, TypeConverter: kept}
	_, err = patch.NewApplyConfigurationPatcher(kept).Patch(context.Background(), request, 0)
	if !errors.Is(err, errKept) {
		return nil, err
	}
	if foreign := foreignType(kept.merged); foreign != "" {
		return nil, errors.New("foreign: " + foreign)
	}
	return withoutNil(kept.merged), nil
}

// evaluated is an expression whose value is known. As a converter of types, it keeps the object that is to be merged.
type evaluated struct {
	value  ref.Val
	merged map[string]any
}

var errKept = errors.New("kept")

func (e *evaluated) ForInput(context.Context, *admission.VersionedAttributes, *admissionv1.AdmissionRequest, cel.OptionalVariableBindings, *corev1.Namespace, int64) (cel.EvaluationResult, int64, error) {
	return cel.EvaluationResult{EvalResult: e.value}, 0, nil
}

func (*evaluated) CompilationErrors() []error { return nil }

func (e *evaluated) ObjectToTyped(object runtime.Object, _ ...typed.ValidationOptions) (*typed.TypedValue, error) {
	e.merged = object.(*unstructured.Unstructured).Object
	return nil, errKept
}

func (*evaluated) TypedToObject(*typed.TypedValue) (runtime.Object, error) {
	panic("nothing was typed")
}

// foreignType is the type of a value that is none of an unstructured object. No schema accepts it.
func foreignType(value any) string {
	switch v := value.(type) {
	case nil, bool, int64, string:
		return ""
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return strconv.FormatFloat(v, 'g', -1, 64)
		}
		return ""
	case []any:
		for _, item := range v {
			if foreign := foreignType(item); foreign != "" {
				return foreign
			}
		}
		return ""
	case map[string]any:
		for _, item := range v {
			if foreign := foreignType(item); foreign != "" {
				return foreign
			}
		}
		return ""
	default:
		return fmt.Sprintf("%T", value)
	}
}

// withoutNil has empty lists for those that are nil: they are the same to a schema, and not in JSON.
func withoutNil(value any) any {
	switch v := value.(type) {
	case []any:
		items := make([]any, len(v))
		for i, item := range v {
			items[i] = withoutNil(item)
		}
		return items
	case map[string]any:
		fields := make(map[string]any, len(v))
		for name, field := range v {
			fields[name] = withoutNil(field)
		}
		return fields
	default:
		return value
	}
}
