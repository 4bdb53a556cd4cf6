// Command cel evaluates CEL expressions with kube-apiserver's code: those of an AuthenticationConfiguration, of the
// match conditions of authorization and admission webhooks, and of admission policies.
//
// It reads one case per line as JSON from standard input and writes one line for each: the compile error, if any, and
// the value of the expression. With the argument "functions", it lists the overloads of this release's type checker
// instead, in the order in which the type checker tries them, those of new objects with "functions new"; with "loop",
// it measures the evaluations of one expression.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"
	_ "unsafe" // for go:linkname: the values are made by the functions that the authenticator uses

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	admissioncel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/lazy"
	"k8s.io/apiserver/pkg/cel/library"
	_ "k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"

	"portcullis.dev/tests/go/patches"
)

//go:linkname newClaimsValue k8s.io/apiserver/plugin/pkg/authenticator/token/oidc.newClaimsValue
func newClaimsValue(map[string]json.RawMessage) *lazy.MapValue

//go:linkname newUserInfoValue k8s.io/apiserver/plugin/pkg/authenticator/token/oidc.newUserInfoValue
func newUserInfoValue(user.Info) *lazy.MapValue

type testCase struct {
	Purpose    string                     `json:"purpose"`
	Expression string                     `json:"expression"`
	Claims     map[string]json.RawMessage `json:"claims"`
	User       struct {
		Username string              `json:"username"`
		UID      string              `json:"uid"`
		Groups   []string            `json:"groups"`
		Extra    map[string][]string `json:"extra"`
	} `json:"user"`
	// New selects the environment of expressions in new objects, for the purposes of admission. Without it, the
	// environment is that of stored ones, which is the only one of authentication and authorization.
	New bool `json:"new"`
	// Iterations is the number of evaluations, with the argument "loop".
	Iterations int `json:"iterations"`
	// Variables are those of the purposes "review" and "admission", other than the authorizer.
	Variables json.RawMessage `json:"variables"`
}

type answer struct {
	// CompileError is empty for an expression that compiles.
	CompileError string `json:"compileError"`
	EvalError    string `json:"evalError"`
	// Misfit is why the value of a mutation is none of a patch.
	Misfit string `json:"misfit"`
	Value  any    `json:"value"`
	// Type is the type of the expression, as the type checker infers it.
	Type string `json:"type"`
	Cost uint64 `json:"cost"`
}

// program is an expression that compiles, with its variables.
type program struct {
	cel.Program
	outputType *cel.Type
	variables  any
}

// anyExpression is an expression of the admission environments, of any type.
type anyExpression string

func (e anyExpression) GetExpression() string    { return string(e) }
func (e anyExpression) ReturnTypes() []*cel.Type { return []*cel.Type{cel.AnyType} }

type activation func(name string) (any, bool)

func (a activation) ResolveName(name string) (any, bool) { return a(name) }
func (a activation) Parent() interpreter.Activation      { return nil }

// fakeAuthorizer allows the verb "get", and describes the question as the reason. The verb "fail" is an error.
type fakeAuthorizer struct{}

func (fakeAuthorizer) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	var parts []string
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+"="+value)
		}
	}
	add("user", a.GetUser().GetName())
	add("verb", a.GetVerb())
	add("path", a.GetPath())
	add("group", a.GetAPIGroup())
	add("resource", a.GetResource())
	add("subresource", a.GetSubresource())
	add("namespace", a.GetNamespace())
	add("name", a.GetName())
	reason := strings.Join(parts, " ")
	switch a.GetVerb() {
	case "get":
		return authorizer.DecisionAllow, reason, nil
	case "fail":
		return authorizer.DecisionNoOpinion, reason, errors.New("cannot answer")
	default:
		return authorizer.DecisionDeny, reason, nil
	}
}

type requestResource struct{}

func (requestResource) GetName() string      { return "web" }
func (requestResource) GetNamespace() string { return "team" }
func (requestResource) GetSubresource() string {
	return "scale"
}
func (requestResource) GetResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
}

func named(name string, value any) any {
	return activation(func(wanted string) (any, bool) { return value, wanted == name })
}

// compilers are those of kube-apiserver's authenticator, authorizer and admission.
type compilers struct {
	authentication authenticationcel.Compiler
	authorization  authorizationcel.Compiler
	admission      admissioncel.Compiler
}

func newCompilers() compilers {
	return compilers{
		authentication: authenticationcel.NewDefaultCompiler(),
		authorization:  authorizationcel.NewDefaultCompiler(),
		admission:      admissioncel.NewCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())),
	}
}

func (c compilers) compile(q testCase) (program, error) {
	claims := func(accessor authenticationcel.ExpressionAccessor) (program, error) {
		result, err := c.authentication.CompileClaimsExpression(accessor)
		if err != nil {
			return program{}, err
		}
		return program{result.Program, result.AST.OutputType(), named("claims", newClaimsValue(q.Claims))}, nil
	}
	admission := func(options admissioncel.OptionalVariableDeclarations) (program, error) {
		var accessor admissioncel.ExpressionAccessor = anyExpression(q.Expression)
		switch q.Purpose {
		case "applyConfiguration":
			accessor = &patch.ApplyConfigurationCondition{Expression: q.Expression}
		case "jsonPatch":
			accessor = &patch.JSONPatchCondition{Expression: q.Expression}
		}
		result := c.admission.CompileCELExpression(accessor, options, environments(q.New))
		if result.Error != nil {
			return program{}, result.Error
		}
		values := q.values()
		user := &user.DefaultInfo{Name: "asker"}
		return program{result.Program, result.OutputType, activation(func(name string) (any, bool) {
			switch name {
			case "authorizer":
				return library.NewAuthorizerVal(user, fakeAuthorizer{}), true
			case "authorizer.requestResource":
				return library.NewResourceAuthorizerVal(user, fakeAuthorizer{}, requestResource{}), true
			default:
				value, ok := values[name]
				return value, ok
			}
		})}, nil
	}
	switch q.Purpose {
	case "mapping":
		return claims(&authenticationcel.ClaimMappingExpression{Expression: q.Expression})
	case "claimRule":
		return claims(&authenticationcel.ClaimValidationCondition{Expression: q.Expression})
	case "userRule":
		result, err := c.authentication.CompileUserExpression(&authenticationcel.UserValidationCondition{Expression: q.Expression})
		if err != nil {
			return program{}, err
		}
		info := &user.DefaultInfo{Name: q.User.Username, UID: q.User.UID, Groups: q.User.Groups, Extra: q.User.Extra}
		return program{result.Program, result.AST.OutputType(), named("user", newUserInfoValue(info))}, nil
	case "review":
		result, err := c.authorization.CompileCELExpression(&authorizationcel.SubjectAccessReviewMatchCondition{Expression: q.Expression})
		if err != nil {
			return program{}, err
		}
		return program{result.Program, cel.BoolType, named("request", q.values()["request"])}, nil
	case "admission":
		return admission(admissioncel.OptionalVariableDeclarations{HasAuthorizer: true})
	case "policy":
		return admission(admissioncel.OptionalVariableDeclarations{HasParams: true, HasAuthorizer: true})
	case "mutation", "applyConfiguration", "jsonPatch":
		return admission(admissioncel.OptionalVariableDeclarations{HasParams: true, HasAuthorizer: true, HasPatchTypes: true})
	default:
		panic(q.Purpose)
	}
}

// values returns the variables as kube-apiserver converts objects: whole numbers are integers.
func (q testCase) values() map[string]any {
	values := map[string]any{}
	if len(q.Variables) > 0 {
		if err := utiljson.Unmarshal(q.Variables, &values); err != nil {
			panic(err)
		}
	}
	return values
}

// number returns a quantity as digits and exponent, without trailing zeros.
func number(quantity resource.Quantity) string {
	amount := quantity.AsDec()
	digits := amount.UnscaledBig().String()
	reduced := strings.TrimRight(digits, "0")
	if reduced == "" {
		return "0e0"
	}
	return fmt.Sprintf("%se%d", reduced, len(digits)-len(reduced)-int(amount.Scale()))
}

// describe returns a result: values of libraries as their type and text. A list that the authenticator does not accept
// as a list of strings is only a type.
func describe(value ref.Val) any {
	native := func(text string) any { return map[string]any{value.Type().TypeName(): text} }
	switch v := value.(type) {
	case types.Null:
		return map[string]any{"null": true}
	case types.Bool:
		return map[string]any{"bool": bool(v)}
	case types.String:
		return map[string]any{"string": string(v)}
	case types.Int:
		return native(strconv.FormatInt(int64(v), 10))
	case types.Uint:
		return native(strconv.FormatUint(uint64(v), 10))
	case types.Double:
		if math.IsNaN(float64(v)) {
			return native("NaN")
		}
		return native(strconv.FormatUint(math.Float64bits(float64(v)), 16))
	case types.Bytes:
		return native(hex.EncodeToString(v))
	case types.Duration:
		return native(strconv.FormatInt(v.Nanoseconds(), 10))
	case types.Timestamp:
		return native(v.Time.UTC().Format(time.RFC3339Nano))
	case *types.Optional:
		if !v.HasValue() {
			return map[string]any{"optional": nil}
		}
		return map[string]any{"optional": describe(v.GetValue())}
	case *types.Type:
		return map[string]any{"type": v.TypeName()}
	case apiservercel.IP:
		return native(v.Addr.String())
	case apiservercel.CIDR:
		return native(v.Prefix.String())
	case apiservercel.Quantity:
		return native(number(v.Quantity.DeepCopy()))
	case *apiservercel.Quantity:
		return native(number(v.Quantity.DeepCopy()))
	case apiservercel.URL:
		return native(v.URL.String())
	case apiservercel.Semver:
		return native(v.Version.String())
	case apiservercel.Format:
		return native(v.Name)
	case traits.Lister:
		items := []any{}
		for i := types.Int(0); i < v.Size().(types.Int); i++ {
			items = append(items, describe(v.Get(i)))
		}
		switch value.Value().(type) {
		case []any, []ref.Val:
			return map[string]any{"list": items}
		default:
			// The authenticator accepts only these two list types.
			return map[string]any{"opaque": items}
		}
	case traits.Mapper:
		if v.Type().TypeName() != "map" {
			return map[string]any{"other": value.Type().TypeName()}
		}
		entries := [][2]any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			entries = append(entries, [2]any{describe(key), describe(v.Get(key))})
		}
		sort.Slice(entries, func(i, j int) bool {
			return fmt.Sprint(entries[i][0]) < fmt.Sprint(entries[j][0])
		})
		return map[string]any{"map": entries}
	default:
		return map[string]any{"other": value.Type().TypeName()}
	}
}

// result is the patch of a mutation, or a description of another value.
func result(purpose string, value ref.Val) (any, error) {
	switch purpose {
	case "applyConfiguration":
		return patches.Merged(value)
	case "jsonPatch":
		return patches.Operations(value)
	default:
		return describe(value), nil
	}
}

func (c compilers) judge(q testCase) (verdict answer) {
	// The compiler panics on some map keys.
	defer func() {
		if reason := recover(); reason != nil {
			verdict = answer{CompileError: fmt.Sprintf("panic: %v", reason)}
		}
	}()
	compiled, err := c.compile(q)
	if err != nil {
		return answer{CompileError: err.Error()}
	}
	verdict.Type = cel.FormatCELType(compiled.outputType)
	value, details, err := compiled.ContextEval(context.Background(), compiled.variables)
	if details != nil && details.ActualCost() != nil {
		verdict.Cost = *details.ActualCost()
	}
	if err != nil {
		verdict.EvalError = err.Error()
		return verdict
	}
	verdict.Value, err = result(q.Purpose, value)
	if err != nil {
		verdict.Misfit = err.Error()
	}
	return verdict
}

// loop evaluates one expression again and again, and prints how long that took, in nanoseconds.
func (c compilers) loop(q testCase) {
	compiled, err := c.compile(q)
	if err != nil {
		panic(err)
	}
	started := time.Now()
	for range q.Iterations {
		if _, _, err := compiled.ContextEval(context.Background(), compiled.variables); err != nil {
			panic(err)
		}
	}
	fmt.Println(time.Since(started).Nanoseconds())
}

func environments(ofNew bool) environment.Type {
	if ofNew {
		return environment.NewExpressions
	}
	return environment.StoredExpressions
}

func functions(kind environment.Type, write func(any)) {
	env, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Env(kind)
	if err != nil {
		panic(err)
	}
	lines := map[string][]string{}
	for name, function := range env.Functions() {
		for _, overload := range function.OverloadDecls() {
			var args []string
			for _, arg := range overload.ArgTypes() {
				args = append(args, cel.FormatCELType(arg))
			}
			target := ""
			if overload.IsMemberFunction() {
				target, args = args[0]+".", args[1:]
			}
			result := cel.FormatCELType(overload.ResultType())
			lines[name] = append(lines[name], fmt.Sprintf("%s(%s) -> %s", target, strings.Join(args, ", "), result))
		}
	}
	write(lines)
}

func main() {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	encoder := json.NewEncoder(out)
	write := func(value any) {
		if err := encoder.Encode(value); err != nil {
			panic(err)
		}
	}
	if len(os.Args) > 1 && os.Args[1] == "functions" {
		functions(environments(len(os.Args) > 2 && os.Args[2] == "new"), write)
		return
	}
	compilers := newCompilers()
	if len(os.Args) > 1 && os.Args[1] == "loop" {
		var c testCase
		if err := json.NewDecoder(os.Stdin).Decode(&c); err != nil {
			panic(err)
		}
		compilers.loop(c)
		return
	}
	cases := json.NewDecoder(bufio.NewReader(os.Stdin))
	for cases.More() {
		var c testCase
		if err := cases.Decode(&c); err != nil {
			panic(err)
		}
		write(compilers.judge(c))
	}
}
