package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// shapes bound what a newcomer must hold in the head at once.
var shapes = []struct {
	what, remedy string
	most         int
}{
	{"methods", "give some of them to an owner of their own", 40},
	{"methods of an interface, with what it embeds", "let each caller declare what it calls", 8},
	{"fields that are functions", "name by an interface what belongs together", 6},
}

func TestShapes(t *testing.T) {
	p := &product{map[string]int{}, map[string]int{}, map[string]*ast.InterfaceType{}, map[string]map[string]string{}}
	err := filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		if file == "test" || file == "build" {
			return fs.SkipDir
		}
		if err != nil || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		p.add(path.Dir(file), parsed)
		return err
	})
	if err != nil || len(p.contracts) < 20 {
		t.Fatalf("%d interfaces, %v", len(p.contracts), err)
	}
	interfaces := map[string]int{}
	for name := range p.contracts {
		interfaces[name] = p.size(name)
	}
	for i, counts := range []map[string]int{p.methods, interfaces, p.functions} {
		shape := shapes[i]
		for name, n := range counts {
			if n > shape.most {
				t.Errorf("%s has %d %s, more than %d: %s", name, n, shape.what, shape.most, shape.remedy)
			}
		}
	}
}

// product is the program's source, without tests. Types have names like "backends.Spec".
type product struct {
	methods, functions map[string]int
	contracts          map[string]*ast.InterfaceType
	imports            map[string]map[string]string // by interface: folders by the names of packages
}

func (p *product) add(folder string, file *ast.File) {
	imports := map[string]string{}
	for _, spec := range file.Imports {
		imported := strings.Trim(spec.Path.Value, `"`)
		imports[path.Base(imported)] = strings.TrimPrefix(imported, module+"/")
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if f, ok := n.(*ast.FuncDecl); ok && f.Recv != nil {
			of, _, _ := strings.Cut(strings.TrimPrefix(types.ExprString(f.Recv.List[0].Type), "*"), "[")
			p.methods[folder+"."+of]++
		}
		if spec, ok := n.(*ast.TypeSpec); ok {
			name := folder + "." + spec.Name.Name
			switch of := spec.Type.(type) {
			case *ast.InterfaceType:
				p.contracts[name], p.imports[name] = of, imports
			case *ast.StructType:
				for _, field := range of.Fields.List {
					if _, ok := field.Type.(*ast.FuncType); ok {
						p.functions[name] += len(field.Names)
					}
				}
			}
		}
		return true
	})
}

// size counts an interface's methods; what it embeds of other modules counts as one.
func (p *product) size(name string) (n int) {
	if p.contracts[name] == nil {
		return 1
	}
	for _, method := range p.contracts[name].Methods.List {
		pkg, embedded, qualified := strings.Cut(types.ExprString(method.Type), ".")
		folder := p.imports[name][pkg]
		if !qualified {
			folder, embedded = name[:strings.LastIndex(name, ".")], pkg
		}
		if n += len(method.Names); len(method.Names) == 0 {
			n += p.size(folder + "." + embedded)
		}
	}
	return n
}
