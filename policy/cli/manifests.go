package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubejson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"sigs.k8s.io/yaml"
)

// maxManifests bounds how much of a manifest file is read.
const maxManifests = 64 << 20

// stdinName stands for standard input in what is printed.
const stdinName = "<stdin>"

// manifests are the objects in files that matter to the decision about claims. Of two
// objects with the same name, the later one counts, as with kubectl apply.
type manifests struct {
	claims     []claimManifest
	namespaces map[string]*corev1.Namespace
	classes    map[string]*storagev1.StorageClass
	nodes      map[string]*corev1.Node
	attributes map[string]*storagev1.VolumeAttributesClass
	// ignored names the objects of other kinds.
	ignored []string
}

// claimManifest is a claim with its position.
type claimManifest struct {
	source string
	claim  *corev1.PersistentVolumeClaim
}

// manifestReader reads objects as strictly as kubectl apply does by default:
// unknown and duplicate fields are mistakes.
type manifestReader struct {
	decoder runtime.Decoder
	// namespace is for claims that name none, as with kubectl --namespace. Explicit means
	// that claims may name no other.
	namespace string
	explicit  bool
	found     manifests
}

func newManifestReader(namespace string) (*manifestReader, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, storagev1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("prepare reading manifests: %w", err)
		}
	}
	r := &manifestReader{
		decoder:   kubejson.NewSerializerWithOptions(kubejson.DefaultMetaFactory, scheme, scheme, kubejson.SerializerOptions{Yaml: true, Strict: true}),
		namespace: namespace,
		explicit:  namespace != "",
		found:     manifests{namespaces: map[string]*corev1.Namespace{}, classes: map[string]*storagev1.StorageClass{}, nodes: map[string]*corev1.Node{}, attributes: map[string]*storagev1.VolumeAttributesClass{}},
	}
	if !r.explicit {
		r.namespace = corev1.NamespaceDefault
	}
	return r, nil
}

// readFile reads all objects of a file; - is standard input.
func (r *manifestReader) readFile(file string, stdin io.Reader) error {
	from, source := stdin, stdinName
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return fmt.Errorf("read manifests: %w", err)
		}
		defer f.Close() //nolint:errcheck // Nothing was written.
		from, source = f, file
	}
	data, err := io.ReadAll(io.LimitReader(from, maxManifests+1))
	switch {
	case err != nil:
		return fmt.Errorf("read manifests: %w", err)
	case len(data) > maxManifests:
		return fmt.Errorf("read manifests: %s is larger than %d MiB; give fewer objects at once", source, maxManifests>>20)
	}
	for _, document := range splitDocuments(data) {
		at := fmt.Sprintf("%s:%d", source, document.line)
		if err := r.readObject(document.text, at, document.before); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	return nil
}

// document is one YAML document of a file.
type document struct {
	// line is the number of its first non-empty line; before is the number of lines in
	// front of its text.
	line, before int
	text         []byte
}

// splitDocuments splits at the same lines as kubectl and omits empty documents.
func splitDocuments(data []byte) []document {
	var documents []document
	current := document{}
	end := func() {
		if current.line > 0 {
			documents = append(documents, current)
		}
		current = document{}
	}
	for i, line := range bytes.SplitAfter(data, []byte("\n")) {
		text := bytes.TrimSpace(line)
		if rest, separates := bytes.CutPrefix(line, []byte("---")); separates {
			if rest = bytes.TrimSpace(rest); len(rest) == 0 || rest[0] == '#' {
				end()
				current.before = i + 1
				continue
			}
		}
		if current.line == 0 && len(text) > 0 && text[0] != '#' {
			current.line = i + 1
		}
		current.text = append(current.text, line...)
	}
	end()
	return documents
}

// header is the common beginning of all objects.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name         string `json:"name"`
		GenerateName string `json:"generateName"`
		Namespace    string `json:"namespace"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

func (h header) String() string {
	name := h.Metadata.Name
	if h.Metadata.Namespace != "" {
		name = h.Metadata.Namespace + "/" + name
	}
	return h.Kind + " " + name
}

// readObject reads a document's text. at is its position, and before is the number of
// lines in front of the text.
func (r *manifestReader) readObject(text []byte, at string, before int) error {
	var h header
	if err := yaml.Unmarshal(text, &h); err != nil {
		return fmt.Errorf("not a Kubernetes object: %s", yamlProblem(err, before))
	}
	switch {
	case h.Kind == "":
		return errors.New("not a Kubernetes object: kind is missing")
	case h.APIVersion == "":
		return fmt.Errorf("%s has no apiVersion", h)
	case h.Kind == "List":
		for i, item := range h.Items {
			if err := r.readObject(item, at, before); err != nil {
				return fmt.Errorf("items[%d]: %w", i, err)
			}
		}
		return nil
	}
	known, ok := map[string]string{"PersistentVolumeClaim": "v1", "Namespace": "v1", "Node": "v1", "StorageClass": "storage.k8s.io/v1", "VolumeAttributesClass": "storage.k8s.io/v1"}[h.Kind]
	switch {
	case !ok:
		r.found.ignored = append(r.found.ignored, fmt.Sprintf("%s (%s)", h, at))
		return nil
	case h.APIVersion != known:
		return fmt.Errorf("%s has the apiVersion %s; write %s", h, h.APIVersion, known)
	case h.Metadata.Name == "" && h.Metadata.GenerateName == "":
		return fmt.Errorf("%s has no metadata.name", h.Kind)
	}
	object, _, err := r.decoder.Decode(text, nil, nil)
	if err != nil {
		return fmt.Errorf("%s: %s", h, yamlProblem(err, before))
	}
	switch object := object.(type) {
	case *corev1.PersistentVolumeClaim:
		if object.Namespace == "" {
			object.Namespace = r.namespace
		}
		if r.explicit && object.Namespace != r.namespace {
			return fmt.Errorf("%s is not in the namespace %s of --namespace; remove one of the two", h, r.namespace)
		}
		if object.Name == "" {
			object.Name = object.GenerateName + "*"
		}
		r.found.claims = append(r.found.claims, claimManifest{source: at, claim: object})
	case *corev1.Namespace:
		r.found.namespaces[object.Name] = object
	case *storagev1.StorageClass:
		r.found.classes[object.Name] = object
	case *corev1.Node:
		r.found.nodes[object.Name] = object
	case *storagev1.VolumeAttributesClass:
		r.found.attributes[object.Name] = object
	}
	return nil
}

var (
	decoderPrefix = regexp.MustCompile(`^(error (converting YAML to JSON|unmarshaling JSON)|while decoding JSON|yaml|json|unmarshal errors|strict decoding error): *`)
	decoderLine   = regexp.MustCompile(`\bline (\d+):`)
)

// yamlProblem returns a decoder's error in one line, without its own prefixes and with
// lines counted from the beginning of the file.
func yamlProblem(err error, before int) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	for decoderPrefix.MatchString(text) {
		text = decoderPrefix.ReplaceAllString(text, "")
	}
	return decoderLine.ReplaceAllStringFunc(text, func(found string) string {
		line, err := strconv.Atoi(decoderLine.FindStringSubmatch(found)[1])
		if err != nil {
			return found
		}
		return fmt.Sprintf("line %d:", line+before)
	})
}

const (
	defaultClassAnnotation     = "storageclass.kubernetes.io/is-default-class"
	betaDefaultClassAnnotation = "storageclass.beta.kubernetes.io/is-default-class"
)

// defaultClass returns the StorageClass that Kubernetes would give to a claim that names
// none. Of several, Kubernetes takes the newest, then the first by name; objects in a
// manifest have no age yet.
func (m manifests) defaultClass() string {
	var names []string
	for name, class := range m.classes {
		if class.Annotations[defaultClassAnnotation] == "true" || class.Annotations[betaDefaultClassAnnotation] == "true" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return slices.Min(names)
}
