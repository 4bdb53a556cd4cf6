// Command merge answers with the code with which kube-apiserver merges the apply configurations of mutating admission policies.
//
// It reads one question per line as JSON and writes one line for each.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	_ "unsafe" // for the name of an unexported function

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-openapi/pkg/schemaconv"
	"k8s.io/kube-openapi/pkg/spec3"
	smdschema "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"portcullis.dev/tests/go/lines"
)

type question struct {
	// File is the path of a document; or Document is the document itself.
	File     string          `json:"file"`
	Document string          `json:"document"`
	Original json.RawMessage `json:"original"`
	Patch    json.RawMessage `json:"patch"`
	// Typed replaces the object by what an API server serves for it, and asks for the result of its Go type as well.
	Typed bool `json:"typed"`
	// Strict asks for the error of decoding the object strictly, as after a JSON patch.
	Strict bool `json:"strict"`
}

type answer struct {
	// Unreadable is the error of reading the document.
	Unreadable string          `json:"unreadable,omitempty"`
	Result     json.RawMessage `json:"result,omitempty"`
	// Error is that of kube-apiserver's function, which visits the fields of a map in any order; Sorted is that of the same steps
	// over maps that are sorted.
	Error  string `json:"error,omitempty"`
	Sorted string `json:"sorted,omitempty"`
	// Foreign says why the object is none of its Go type; else Served is how an API server writes it.
	Foreign string          `json:"foreign,omitempty"`
	Served  json.RawMessage `json:"served,omitempty"`
	// Typed is the result of merging into the value of the Go type, and Plain that of merging into what is served; both are
	// read into the Go type.
	Typed      json.RawMessage `json:"typed,omitempty"`
	TypedError string          `json:"typedError,omitempty"`
	Plain      json.RawMessage `json:"plain,omitempty"`
	PlainError string          `json:"plainError,omitempty"`
	// Strict is the error of strict decoding.
	Strict string `json:"strict,omitempty"`
}

type document struct {
	converter managedfields.TypeConverter
	types     *smdschema.Schema
	names     map[schema.GroupVersionKind]string
	err       error
}

var documents = map[string]*document{}

func main() { lines.Each(func(q question) any { return ask(q) }) }

func ask(q question) (a answer) {
	if q.Strict {
		return strict(q.Original)
	}
	key := q.File + "\n" + q.Document
	doc := documents[key]
	if doc == nil {
		doc = read(q)
		documents[key] = doc
	}
	if doc.err != nil {
		return answer{Unreadable: doc.err.Error()}
	}
	if len(q.Original) == 0 {
		return answer{}
	}
	original, change := &unstructured.Unstructured{}, &unstructured.Unstructured{}
	if err := errors.Join(decode(q.Original, original), decode(q.Patch, change)); err != nil {
		panic(err)
	}
	if q.Typed {
		typed, err := asServed(original)
		if err != nil {
			return answer{Foreign: err.Error()}
		}
		a.Served = encode(original)
		a.Typed, a.TypedError = result(patch.ApplyStructuredMergeDiff(doc.converter, typed, change))
		a.Plain, a.PlainError = result(patch.ApplyStructuredMergeDiff(doc.converter, original, change))
	}
	merged, err := patch.ApplyStructuredMergeDiff(doc.converter, original, change)
	if err != nil {
		a.Error = err.Error()
	} else {
		a.Result = encode(merged)
	}
	a.Sorted = sortedError(doc, original, change)
	return a
}

// strict decodes an object as the plug-in decodes what a JSON patch has made.
func strict(object []byte) answer {
	options := jsonserializer.SerializerOptions{Strict: true}
	serializer := jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, options)
	_, _, err := serializer.Decode(object, nil, nil)
	switch {
	case err == nil:
		return answer{}
	case runtime.IsStrictDecodingError(err):
		return answer{Strict: err.Error()}
	default:
		return answer{Foreign: err.Error()}
	}
}

// decode reads an object of any kind, or of none, which unstructured.Unstructured does not read by itself.
func decode(text []byte, into *unstructured.Unstructured) error {
	return utiljson.Unmarshal(text, &into.Object)
}

func encode(object any) []byte {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return text
}

func read(q question) *document {
	text := []byte(q.Document)
	if q.File != "" {
		var err error
		if text, err = os.ReadFile(q.File); err != nil {
			panic(err)
		}
	}
	var openapi spec3.OpenAPI
	if err := json.Unmarshal(text, &openapi); err != nil {
		return &document{err: fmt.Errorf("failed to unmarshal schema: %w", err)}
	}
	if openapi.Components == nil {
		return &document{err: errors.New("no components")}
	}
	schemas := openapi.Components.Schemas
	converter, err := managedfields.NewTypeConverter(schemas, false)
	if err != nil {
		return &document{err: fmt.Errorf("failed to create type converter: %w", err)}
	}
	types, err := schemaconv.ToSchemaFromOpenAPI(schemas, false)
	if err != nil {
		panic(err)
	}
	doc := &document{converter: converter, types: types, names: map[schema.GroupVersionKind]string{}}
	for name, model := range schemas {
		kinds, _ := model.Extensions["x-kubernetes-group-version-kind"].([]any)
		for _, kind := range kinds {
			parts, _ := kind.(map[string]any)
			group, _ := parts["group"].(string)
			version, _ := parts["version"].(string)
			kind, _ := parts["kind"].(string)
			doc.names[schema.GroupVersionKind{Group: group, Version: version, Kind: kind}] = name
		}
	}
	return doc
}

//go:linkname validatePatch k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch.validatePatch
func validatePatch(v *typed.TypedValue) error

// sortedError is the error of patch.ApplyStructuredMergeDiff, were maps visited in the order of their keys.
func sortedError(doc *document, original, change *unstructured.Unstructured) string {
	kind := original.GroupVersionKind()
	name, known := doc.names[kind]
	if change.GroupVersionKind() != kind || !known {
		_, err := patch.ApplyStructuredMergeDiff(doc.converter, original, change)
		return err.Error()
	}
	asTyped := func(object *unstructured.Unstructured, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
		v := sortedValue{value.NewValueInterface(object.Object)}
		return typed.AsTyped(v, doc.types, smdschema.TypeRef{NamedType: &name}, options...)
	}
	right, err := asTyped(change)
	if err != nil {
		return "failed to convert patch object to typed object: " + err.Error()
	}
	if err := validatePatch(right); err != nil {
		return "invalid ApplyConfiguration: " + err.Error()
	}
	left, err := asTyped(original, typed.AllowDuplicates)
	if err != nil {
		return "failed to convert original object to typed object: " + err.Error()
	}
	if _, err := left.Merge(right); err != nil {
		return "failed to merge patch: " + err.Error()
	}
	return ""
}

// sortedValue is a value whose maps are visited in the order of their keys.
type sortedValue struct{ value.Value }

func (v sortedValue) Format(f fmt.State, verb rune) {
	fmt.Fprintf(f, fmt.FormatString(f, verb), v.Value)
}

func (v sortedValue) AsMap() value.Map { return sortedMap{v.Value.AsMap()} }

func (v sortedValue) AsMapUsing(value.Allocator) value.Map { return v.AsMap() }

func (v sortedValue) AsList() value.List { return sortedList{v.Value.AsList()} }

func (v sortedValue) AsListUsing(value.Allocator) value.List { return v.AsList() }

type sortedList struct{ value.List }

func (l sortedList) At(i int) value.Value { return sortedValue{l.List.At(i)} }

func (l sortedList) AtUsing(_ value.Allocator, i int) value.Value { return l.At(i) }

type sortedMap struct{ value.Map }

func (m sortedMap) keys() []string {
	var keys []string
	m.Map.Iterate(func(key string, _ value.Value) bool {
		keys = append(keys, key)
		return true
	})
	sort.Strings(keys)
	return keys
}

func (m sortedMap) Get(key string) (value.Value, bool) {
	v, ok := m.Map.Get(key)
	if !ok {
		return nil, false
	}
	return sortedValue{v}, true
}

func (m sortedMap) GetUsing(_ value.Allocator, key string) (value.Value, bool) { return m.Get(key) }

func (m sortedMap) Iterate(visit func(string, value.Value) bool) bool {
	for _, key := range m.keys() {
		v, _ := m.Get(key)
		if !visit(key, v) {
			return false
		}
	}
	return true
}

func (m sortedMap) IterateUsing(_ value.Allocator, visit func(string, value.Value) bool) bool {
	return m.Iterate(visit)
}

func (m sortedMap) ZipUsing(_ value.Allocator, other value.Map, order value.MapTraverseOrder, visit func(string, value.Value, value.Value) bool) bool {
	if order != value.Unordered {
		return m.Map.Zip(other, order, visit)
	}
	return m.Iterate(func(key string, left value.Value) bool {
		var right value.Value
		if other != nil {
			right, _ = other.Get(key)
		}
		return visit(key, left, right)
	}) && (other == nil || other.Iterate(func(key string, right value.Value) bool {
		return m.Has(key) || visit(key, nil, right)
	}))
}

// asServed replaces an object by what an API server writes for it, after it has read it into a Go type; it returns that value.
func asServed(object *unstructured.Unstructured) (runtime.Object, error) {
	typed, err := asGo(object.Object, object.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	typed.GetObjectKind().SetGroupVersionKind(object.GroupVersionKind())
	object.Object = nil
	return typed, decode(encode(typed), object)
}

func asGo(content map[string]any, kind schema.GroupVersionKind) (runtime.Object, error) {
	object, err := scheme.Scheme.New(kind)
	if err != nil {
		return nil, err
	}
	return object, runtime.DefaultUnstructuredConverter.FromUnstructured(content, object)
}

// result is an object as the plug-in goes on with it: as a value of its Go type.
func result(merged runtime.Object, err error) (json.RawMessage, string) {
	if err != nil {
		return nil, err.Error()
	}
	content := merged.(*unstructured.Unstructured)
	typed, err := asGo(content.Object, content.GroupVersionKind())
	if err != nil {
		return nil, "converting: " + err.Error()
	}
	return encode(typed), ""
}
