package template

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/template/parse"
)

// scope is the input of a template's evaluation.
type scope struct {
	values map[string]any
	// secret allows credentials.
	secret bool
}

// expression is part of a template. A missing value is nil.
type expression interface {
	evaluate(*scope) (any, error)
	// name returns the expression's name in messages, source its text in a template.
	name() string
	source() string
}

type literal struct{ value any }

func (l literal) evaluate(*scope) (any, error) { return l.value, nil }
func (l literal) source() string {
	if text, ok := l.value.(string); ok {
		return strconv.Quote(text)
	}
	return fmt.Sprint(l.value)
}
func (l literal) name() string { return l.source() }

// field is a value by its path from the root.
type field struct{ path []string }

func (f field) evaluate(s *scope) (any, error) {
	return descend(s, f, s.values, f.path)
}
func (f field) name() string   { return strings.Join(f.path, ".") }
func (f field) source() string { return "." + f.name() }

// descend follows field names. Fields of a missing value are missing.
func descend(s *scope, of expression, value any, path []string) (any, error) {
	for depth, key := range path {
		if value == nil {
			return nil, nil
		}
		object, ok := value.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s is %s, which has no field %q", strings.Join(path[:depth], "."), kindOf(value), key)
		}
		value = object[key]
	}
	if text, ok := value.(string); ok && len(text) > maxText {
		return nil, fmt.Errorf("%s is longer than %d bytes", of.name(), maxText)
	}
	return value, nil
}

// below is a field of another expression's value.
type below struct {
	of   expression
	path []string
}

func (b below) evaluate(s *scope) (any, error) {
	value, err := b.of.evaluate(s)
	if err != nil {
		return nil, err
	}
	if _, ok := value.(map[string]any); value != nil && !ok {
		return nil, fmt.Errorf("%s is %s, which has no field %q", b.of.name(), kindOf(value), b.path[0])
	}
	return descend(s, b, value, b.path)
}
func (b below) name() string   { return b.of.name() + "." + strings.Join(b.path, ".") }
func (b below) source() string { return "(" + b.of.source() + ")." + strings.Join(b.path, ".") }

// call is a function with its arguments, the piped one last.
type call struct {
	function  string
	arguments []expression
	apply     func(s *scope, c call, values []any) (any, error)
}

func (c call) evaluate(s *scope) (any, error) {
	values := make([]any, len(c.arguments))
	for i, argument := range c.arguments {
		value, err := argument.evaluate(s)
		if err != nil {
			return nil, err
		}
		values[i] = value
	}
	result, err := c.apply(s, c, values)
	if err != nil {
		return nil, err
	}
	if text, ok := result.(string); ok && len(text) > maxText {
		return nil, fmt.Errorf("%s is longer than %d bytes", c.name(), maxText)
	}
	return result, nil
}

func (c call) name() string {
	if c.function == "index" {
		var name strings.Builder
		name.WriteString(c.arguments[0].name())
		for _, key := range c.arguments[1:] {
			fmt.Fprintf(&name, "[%s]", key.name())
		}
		return name.String()
	}
	return "the result of " + c.function
}

func (c call) source() string {
	words := []string{c.function}
	for _, argument := range c.arguments {
		word := argument.source()
		if _, nested := argument.(call); nested {
			word = "(" + word + ")"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// compiler turns the parser's nodes into expressions and collects mistakes in them.
type compiler struct {
	use      Use
	mistakes Mistakes
	paths    [][]string
}

func (c *compiler) mistakef(format string, arguments ...any) {
	c.mistakes = append(c.mistakes, fmt.Sprintf(format, arguments...))
}

// node compiles the text between braces or the expression inside them. On a mistake, it
// returns an empty text, so that the rest is checked as well.
func (c *compiler) node(node parse.Node) expression {
	switch typed := node.(type) {
	case *parse.TextNode:
		return literal{string(typed.Text)}
	case *parse.ActionNode:
		return c.pipe(typed.Pipe)
	case *parse.IfNode, *parse.RangeNode, *parse.WithNode, *parse.TemplateNode, *parse.BreakNode, *parse.ContinueNode:
		c.mistakef("{{%s}} is not part of this language, which has no conditions or loops; use default, index and join", keyword(node))
	default:
		c.mistakef("%s is not part of this language", node)
	}
	return literal{""}
}

func keyword(node parse.Node) string {
	switch node.Type() {
	case parse.NodeIf:
		return "if"
	case parse.NodeRange:
		return "range"
	case parse.NodeWith:
		return "with"
	case parse.NodeTemplate:
		return "template"
	case parse.NodeBreak:
		return "break"
	default:
		return "continue"
	}
}

func (c *compiler) pipe(pipe *parse.PipeNode) expression {
	if len(pipe.Decl) > 0 {
		c.mistakef("%s is not part of this language, which has no variables", pipe.Decl[0])
		return literal{""}
	}
	var value expression
	for _, command := range pipe.Cmds {
		value = c.command(command, value)
	}
	return value
}

// command compiles one command of a pipe; piped is the value before it, or nil.
func (c *compiler) command(command *parse.CommandNode, piped expression) expression {
	first := command.Args[0]
	identifier, isCall := first.(*parse.IdentifierNode)
	if !isCall {
		if len(command.Args) > 1 || piped != nil {
			c.mistakef("%s is not a function and takes no arguments; the functions are %s", first, strings.Join(FunctionNames(), ", "))
			return literal{""}
		}
		return c.operand(first)
	}
	function, known := functions()[identifier.Ident]
	made := call{function: identifier.Ident, apply: function.apply}
	if !known {
		c.mistakef("unknown function %q; the functions are %s", made.function, strings.Join(FunctionNames(), ", "))
		return literal{""}
	}
	for i, argument := range command.Args[1:] {
		// The connection as a whole is not a value, but it can be indexed.
		if whole, ok := argument.(*parse.FieldNode); ok && made.function == "index" && i == 0 && len(whole.Ident) == 1 && whole.Ident[0] == "connection" {
			made.arguments = append(made.arguments, field{whole.Ident})
			continue
		}
		made.arguments = append(made.arguments, c.operand(argument))
	}
	if piped != nil {
		made.arguments = append(made.arguments, piped)
	}
	if n := len(made.arguments); n < function.least || function.most > 0 && n > function.most {
		c.mistakef("%s is called as %s, not with %d arguments", made.function, function.usage, n)
		return literal{""}
	}
	if function.check != nil {
		if mistake := function.check(made.arguments); mistake != "" {
			c.mistakef("%s", mistake)
			return literal{""}
		}
	}
	if made.function == "index" {
		return c.index(made)
	}
	return made
}

// index checks constant keys like the names in a path.
func (c *compiler) index(made call) expression {
	from, isField := made.arguments[0].(field)
	path := []string{}
	if isField {
		path = from.path
	}
	for i, key := range made.arguments[1:] {
		constant, _ := key.(literal)
		name, isName := constant.value.(string)
		if !isName {
			if i == 0 && len(path) == 1 && path[0] == "connection" {
				c.mistakef("index .connection needs the name of a field in quotes")
				return literal{""}
			}
			continue
		}
		if isField && i == 0 && len(path) == 1 {
			c.path(append(path[:1:1], name))
			continue
		}
		c.name(path, name)
	}
	return made
}

func (c *compiler) operand(node parse.Node) expression {
	switch typed := node.(type) {
	case *parse.FieldNode:
		c.path(typed.Ident)
		return field{typed.Ident}
	case *parse.StringNode:
		return literal{typed.Text}
	case *parse.BoolNode:
		return literal{typed.True}
	case *parse.NumberNode:
		if !typed.IsInt {
			c.mistakef("%s is not a whole number; put it in quotes", typed.Text)
			return literal{""}
		}
		return literal{json.Number(strconv.FormatInt(typed.Int64, 10))}
	case *parse.PipeNode:
		return c.pipe(typed)
	case *parse.ChainNode:
		inner := c.operand(typed.Node)
		for _, name := range typed.Field {
			c.name(nil, name)
		}
		return below{inner, typed.Field}
	case *parse.DotNode:
		c.mistakef(". alone is not a value; name one, such as .volume.id")
	case *parse.VariableNode:
		c.mistakef("%s is not part of this language, which has no variables", typed)
	case *parse.IdentifierNode:
		if _, known := functions()[typed.Ident]; known {
			c.mistakef("put %s and its arguments in parentheses", typed.Ident)
		} else {
			c.mistakef("unknown word %q; names of values begin with a dot, text goes in quotes", typed.Ident)
		}
	default:
		c.mistakef("%s is not part of this language", node)
	}
	return literal{""}
}

// path checks and records the path of a value.
func (c *compiler) path(path []string) {
	if mistake := c.use.unknown(path); mistake != "" {
		c.mistakef("%s", mistake)
		return
	}
	if (c.use.Identity || c.use.Device) && path[0] == "claim" && path[1] != "uid" {
		c.mistakef(".%s is chosen by the tenant and must not identify a volume; use .volume.id or .pv.name", strings.Join(path, "."))
		return
	}
	for _, name := range path[1:] {
		c.name(path, name)
	}
	if path[0] == "connection" {
		if reason := c.use.PerNode[path[1]]; reason != "" {
			c.mistakef(".%s must not be written into a PersistentVolume: %s", strings.Join(path, "."), reason)
			return
		}
	}
	c.paths = append(c.paths, path)
}

// name rejects credentials outside of Secrets.
func (c *compiler) name(path []string, name string) {
	if c.use.Secret || !IsCredential(name) {
		return
	}
	of := ""
	if len(path) > 0 {
		of = " of ." + path[0]
	}
	c.mistakef("%s%s is a credential and may be used only under secret.data", name, of)
}

var errCredential = errors.New("a value that holds a credential may be used only under secret.data")

// kindOf names the kind of a value.
func kindOf(value any) string {
	switch value.(type) {
	case nil:
		return "missing"
	case bool:
		return "true or false"
	case json.Number:
		return "a number"
	case string:
		return "text"
	case []any:
		return "a list"
	default:
		return "an object"
	}
}
