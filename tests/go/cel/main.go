// Command cel evaluates CEL expressions of an AuthenticationConfiguration with kube-apiserver's code.
//
// It reads one case per line as JSON from standard input and writes one line for each: the compile error, if any, and
// the value of the expression. With the argument "functions", it lists the overloads of this release's type checker
// instead, in the order in which the type checker tries them.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	_ "unsafe" // for go:linkname: the values are made by the functions that the authenticator uses

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"

	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/lazy"
	_ "k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
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
}

type answer struct {
	// CompileError is empty for an expression that compiles.
	CompileError string `json:"compileError"`
	EvalError    string `json:"evalError"`
	Value        any    `json:"value"`
}

// describe returns the parts of a result that the authenticator uses: null, booleans, strings and lists; for other
// values, the name of the type.
func describe(value ref.Val) any {
	switch v := value.(type) {
	case types.Null:
		return map[string]any{"null": true}
	case types.Bool:
		return map[string]any{"bool": bool(v)}
	case types.String:
		return map[string]any{"string": string(v)}
	case traits.Lister:
		switch value.Value().(type) {
		case []any, []ref.Val:
		default:
			// The authenticator accepts only these two list types.
			return map[string]any{"other": value.Type().TypeName()}
		}
		items := []any{}
		for i := types.Int(0); i < v.Size().(types.Int); i++ {
			items = append(items, describe(v.Get(i)))
		}
		return map[string]any{"list": items}
	default:
		return map[string]any{"other": value.Type().TypeName()}
	}
}

func judge(compiler authenticationcel.Compiler, c testCase) (verdict answer) {
	// The compiler panics on some map keys.
	defer func() {
		if reason := recover(); reason != nil {
			verdict = answer{CompileError: fmt.Sprintf("panic: %v", reason)}
		}
	}()
	var result authenticationcel.CompilationResult
	var err error
	switch c.Purpose {
	case "mapping":
		result, err = compiler.CompileClaimsExpression(&authenticationcel.ClaimMappingExpression{Expression: c.Expression})
	case "claimRule":
		result, err = compiler.CompileClaimsExpression(&authenticationcel.ClaimValidationCondition{Expression: c.Expression})
	case "userRule":
		result, err = compiler.CompileUserExpression(&authenticationcel.UserValidationCondition{Expression: c.Expression})
	default:
		panic(c.Purpose)
	}
	if err != nil {
		return answer{CompileError: err.Error()}
	}
	var evaluated authenticationcel.EvaluationResult
	if c.Purpose == "userRule" {
		info := &user.DefaultInfo{Name: c.User.Username, UID: c.User.UID, Groups: c.User.Groups, Extra: c.User.Extra}
		var all []authenticationcel.EvaluationResult
		all, err = authenticationcel.NewUserMapper([]authenticationcel.CompilationResult{result}).
			EvalUser(context.Background(), newUserInfoValue(info))
		if err == nil {
			evaluated = all[0]
		}
	} else {
		evaluated, err = authenticationcel.NewClaimsMapper([]authenticationcel.CompilationResult{result}).
			EvalClaimMapping(context.Background(), newClaimsValue(c.Claims))
	}
	if err != nil {
		text := err.Error()
		return answer{EvalError: strings.TrimPrefix(text, fmt.Sprintf("expression '%s' resulted in error: ", c.Expression))}
	}
	return answer{Value: describe(evaluated.EvalResult)}
}

func functions(write func(any)) {
	env, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Env(environment.StoredExpressions)
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
		functions(write)
		return
	}
	compiler := authenticationcel.NewDefaultCompiler()
	cases := json.NewDecoder(bufio.NewReader(os.Stdin))
	for cases.More() {
		var c testCase
		if err := cases.Decode(&c); err != nil {
			panic(err)
		}
		write(judge(compiler, c))
	}
}
