// Command types answers with the code with which kube-controller-manager checks the types of admission policies.
//
// It reads one question per line as JSON and writes one line for each.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/google/cel-go/cel"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
	"k8s.io/apiserver/pkg/cel/mutation"
	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"portcullis.dev/tests/go/lines"
)

type question struct {
	Policy *admissionregistrationv1.ValidatingAdmissionPolicy `json:"policy"`
	// Files are the paths of documents, and Documents are documents, by group and version: "apps/v1", "v1".
	Files     map[string]string `json:"files"`
	Documents map[string]string `json:"documents"`
	// Kinds are those of resources: "apps/v1/deployments".
	Kinds map[string]string `json:"kinds"`
	// Open has parts of schemas that do not say what a value is allow any value.
	Open bool `json:"open"`
	// Expressions are others of the policy, to be checked in the same way; those of Mutations may make patches.
	Expressions []string `json:"expressions"`
	Mutations   []string `json:"mutations"`
}

type answer struct {
	// Warnings are those of the status of the policy, by field.
	Warnings map[string]string `json:"warnings"`
	// Expressions and Mutations are the warnings of the others; empty for those without.
	Expressions []string `json:"expressions"`
	Mutations   []string `json:"mutations"`
}

func main() {
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	lines.Each(func(q question) any { return ask(q) })
}

func ask(q question) answer {
	// In a message, the name of a type ends with the time at which it was made.
	shown := func(text string) string { return text }
	for _, kind := range q.Kinds {
		inner := shown
		made := regexp.MustCompile(`\b` + kind + `[0-9]+\b`)
		shown = func(text string) string { return made.ReplaceAllString(inner(text), kind) }
	}
	checker := &validating.TypeChecker{SchemaResolver: schemas{q}, RestMapper: mapper{kinds: q.Kinds}}
	result := answer{Warnings: map[string]string{}}
	for _, warning := range checker.Check(q.Policy) {
		result.Warnings[warning.FieldRef] = shown(warning.Warning)
	}
	ctx := checker.CreateContext(q.Policy)
	for _, expression := range q.Expressions {
		result.Expressions = append(result.Expressions, shown(checker.CheckExpression(ctx, expression).String()))
	}
	for _, expression := range q.Mutations {
		result.Mutations = append(result.Mutations, shown(checkMutation(q, expression).String()))
	}
	return result
}

// mapper knows the kinds of resources.
type mapper struct {
	meta.RESTMapper
	kinds map[string]string
}

func (m mapper) KindsFor(r schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	kind, known := m.kinds[r.GroupVersion().String()+"/"+r.Resource]
	if !known {
		return nil, &meta.NoResourceMatchError{PartialResource: r}
	}
	return []schema.GroupVersionKind{r.GroupVersion().WithKind(kind)}, nil
}

// schemas resolves kinds by documents.
type schemas struct{ question }

var documents = map[string]map[string]*spec.Schema{}
var resolved = map[string]*spec.Schema{}

const prefix = "#/components/schemas/"

// ResolveSchema follows resolver.ClientDiscoveryResolver, with documents that are there.
func (s schemas) ResolveSchema(gvk schema.GroupVersionKind) (*spec.Schema, error) {
	of := gvk.GroupVersion().String()
	key := fmt.Sprintf("%s\n%s", s.Files[of], s.Documents[of])
	document, known := documents[key]
	if !known {
		document = read(s.Files[of], s.Documents[of])
		documents[key] = document
	}
	whole := fmt.Sprintf("%v %v %s", s.Open, gvk, key)
	if found, known := resolved[whole]; known {
		return found, nil
	}
	for name, candidate := range document {
		var kinds []schema.GroupVersionKind
		if err := candidate.Extensions.GetObject("x-kubernetes-group-version-kind", &kinds); err != nil {
			return nil, err
		}
		for _, kind := range kinds {
			if kind != gvk {
				continue
			}
			found, err := resolver.PopulateRefs(func(ref string) (*spec.Schema, bool) {
				s, ok := document[strings.TrimPrefix(ref, prefix)]
				return s, ok
			}, name)
			if err != nil {
				return nil, err
			}
			if s.Open {
				opened := open(*found)
				found = &opened
			}
			resolved[whole] = found
			return found, nil
		}
	}
	return nil, resolver.ErrSchemaNotFound
}

func read(file, text string) map[string]*spec.Schema {
	content := []byte(text)
	if file != "" {
		var err error
		if content, err = os.ReadFile(file); err != nil {
			panic(err)
		}
	}
	var document struct {
		Components struct {
			Schemas map[string]*spec.Schema `json:"schemas"`
		} `json:"components"`
	}
	if len(content) == 0 {
		return nil
	}
	if err := json.Unmarshal(content, &document); err != nil {
		panic(err)
	}
	return document.Components.Schemas
}

func anything() spec.Schema {
	return spec.Schema{VendorExtensible: spec.VendorExtensible{Extensions: spec.Extensions{"x-kubernetes-int-or-string": true}}}
}

// open replaces parts of a schema of which the type checker would know nothing, or no fields, by ones that may be anything.
func open(s spec.Schema) spec.Schema {
	of := openapi.Schema{Schema: &s}
	if of.IsXIntOrString() || of.IsXPreserveUnknownFields() {
		return anything()
	}
	switch of.Type() {
	case "string", "boolean", "number", "integer":
		return s
	case "array":
		items := anything()
		if s.Items != nil && s.Items.Schema != nil {
			items = open(*s.Items.Schema)
		}
		s.Items = &spec.SchemaOrArray{Schema: &items}
		return s
	case "object":
		if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
			values := open(*s.AdditionalProperties.Schema)
			s.AdditionalProperties = &spec.SchemaOrBool{Allows: true, Schema: &values}
			return s
		}
		if len(s.Properties) == 0 || s.AdditionalProperties != nil && s.AdditionalProperties.Allows {
			return anything()
		}
		properties := map[string]spec.Schema{}
		for name, property := range s.Properties {
			properties[name] = open(property)
		}
		s.Properties = properties
		return s
	default:
		return anything()
	}
}

// checkMutation does with an expression what the type checker does, which checks no mutating policies: with the types of patches.
func checkMutation(q question, expression string) validating.TypeCheckingResults {
	var results validating.TypeCheckingResults
	for name, kind := range q.Kinds {
		version, _ := schema.ParseGroupVersion(name[:strings.LastIndex(name, "/")])
		gvk := version.WithKind(kind)
		found, err := schemas{q}.ResolveSchema(gvk)
		if err != nil {
			continue
		}
		object := common.SchemaDeclType(&openapi.Schema{Schema: found}, true)
		compiler := patchCompiler(object.MaybeAssignTypeName(kind))
		options := plugincel.OptionalVariableDeclarations{HasAuthorizer: true}
		for _, variable := range q.Policy.Spec.Variables {
			named := &validating.Variable{Name: variable.Name, Expression: variable.Expression}
			compiler.CompileAndStoreVariable(named, options, environment.StoredExpressions)
		}
		accessor := &validating.ValidationCondition{Expression: expression}
		compiled := compiler.CompileCELExpression(accessor, options, environment.StoredExpressions)
		if compiled.Error != nil {
			results = append(results, &validating.TypeCheckingResult{GVK: gvk, Issues: compiled.Error})
		}
	}
	return results
}

func patchCompiler(object *apiservercel.DeclType) *plugincel.CompositedCompiler {
	request, namespace := plugincel.BuildRequestType(), plugincel.BuildNamespaceType()
	extended, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions: []cel.EnvOption{
			cel.Variable("object", object.CelType()),
			cel.Variable("oldObject", object.CelType()),
			cel.Variable("request", request.CelType()),
			cel.Variable("namespaceObject", namespace.CelType()),
			cel.Variable("authorizer", library.AuthorizerType),
			cel.Variable("authorizer.requestResource", library.ResourceCheckType),
		},
		DeclTypes: []*apiservercel.DeclType{object, request, namespace},
	})
	if err != nil {
		panic(err)
	}
	extended, err = extended.Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions: []cel.EnvOption{
			common.ResolverEnvOption(&mutation.DynamicTypeResolver{}), environment.UnversionedLib(library.JSONPatch),
		},
	})
	if err != nil {
		panic(err)
	}
	compiler, err := plugincel.NewCompositedCompilerForTypeChecking(extended)
	if err != nil {
		panic(err)
	}
	compiler.Compiler = patchTypes{compiler}
	return compiler
}

// patchTypes compiles as far as the type is known.
type patchTypes struct{ *plugincel.CompositedCompiler }

func (c patchTypes) CompileCELExpression(of plugincel.ExpressionAccessor, _ plugincel.OptionalVariableDeclarations, mode environment.Type) plugincel.CompilationResult {
	env, err := c.Env(mode)
	if err != nil {
		panic(err)
	}
	ast, issues := env.Compile(of.GetExpression())
	if issues != nil {
		return plugincel.CompilationResult{Error: &apiservercel.Error{Type: apiservercel.ErrorTypeInvalid, Detail: issues.String()}}
	}
	return plugincel.CompilationResult{OutputType: ast.OutputType()}
}
