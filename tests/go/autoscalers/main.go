// Command autoscalers converts a HorizontalPodAutoscaler to another version as kube-apiserver does between the calls of two
// admission webhooks, and prints quantities.
//
// It reads one question per line as JSON and writes one line for each.
package main

import (
	"bytes"
	"encoding/json"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"

	"portcullis.dev/tests/go/lines"
)

const kind = "HorizontalPodAutoscaler"

type question struct {
	// Quantity is a JSON value, if the question is how it is printed.
	Quantity json.RawMessage `json:"quantity"`
	// Object in the version From is to be converted to the version To.
	Object json.RawMessage `json:"object"`
	From   string          `json:"from"`
	To     string          `json:"to"`
}

type answer struct {
	Error    string          `json:"error,omitempty"`
	Quantity json.RawMessage `json:"quantity,omitempty"`
	Object   json.RawMessage `json:"object,omitempty"`
}

// converted follows apiserver: pkg/admission/plugin/webhook/mutating/dispatcher.go, callAttrMutatingHook, and
// pkg/admission/conversion.go, ConvertVersionedAttributes, for an object that is converted into an empty one.
func converted(q question) (json.RawMessage, error) {
	scheme := legacyscheme.Scheme
	serializer := kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, scheme, scheme, kjson.SerializerOptions{})
	from := schema.GroupVersion{Group: autoscaling.GroupName, Version: q.From}.WithKind(kind)
	to := schema.GroupVersion{Group: autoscaling.GroupName, Version: q.To}.WithKind(kind)
	into, err := scheme.New(from)
	if err != nil {
		return nil, err
	}
	object, _, err := serializer.Decode(q.Object, nil, into)
	if err != nil {
		return nil, err
	}
	scheme.Default(object)
	internal := &autoscaling.HorizontalPodAutoscaler{}
	if err := scheme.Convert(object, internal, nil); err != nil {
		return nil, err
	}
	out, err := scheme.New(to)
	if err != nil {
		return nil, err
	}
	if err := scheme.Convert(internal, out, nil); err != nil {
		return nil, err
	}
	out.GetObjectKind().SetGroupVersionKind(to)
	text, err := runtime.Encode(serializer, out)
	return bytes.TrimSpace(text), err
}

func main() {
	lines.Each(func(q question) any {
		if q.Quantity != nil {
			var quantity resource.Quantity
			if err := quantity.UnmarshalJSON(q.Quantity); err != nil {
				return answer{Error: err.Error()}
			}
			text, err := quantity.MarshalJSON()
			if err != nil {
				return answer{Error: err.Error()}
			}
			return answer{Quantity: text}
		}
		object, err := converted(q)
		if err != nil {
			return answer{Error: err.Error()}
		}
		return answer{Object: object}
	})
}
