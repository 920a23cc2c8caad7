//go:build kubernetes

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v4"
)

// manifest is an object as it is written down in docs/kubernetes.md.
type manifest struct {
	kind, version, namespace string
	json                     []byte
}

// resources are the names in the API of the kinds that the documents may show.
var resources = map[string]string{
	"Pod": "pods", "Service": "services", "ServiceAccount": "serviceaccounts", "ConfigMap": "configmaps", "Role": "roles", "RoleBinding": "rolebindings",
	"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings", "Deployment": "deployments", "StatefulSet": "statefulsets",
	"PodDisruptionBudget": "poddisruptionbudgets",
}

// path is the collection that an object of its kind goes to.
func (m manifest) path(namespace string) string {
	base := "/apis/" + m.version
	if !strings.Contains(m.version, "/") {
		base = "/api/" + m.version
	}
	if !strings.HasPrefix(m.kind, "Cluster") {
		base += "/namespaces/" + namespace
	}
	return base + "/" + resources[m.kind]
}

// in is the object with another namespace in the place of its own.
func (m manifest) in(namespace string) (o object) {
	text := m.json
	if m.namespace != "" {
		text = bytes.ReplaceAll(text, fmt.Appendf(nil, `"namespace":%q`, m.namespace), fmt.Appendf(nil, `"namespace":%q`, namespace))
	}
	if err := json.Unmarshal(text, &o); err != nil {
		panic(err) // it was written by encoding/json
	}
	return o
}

var readDocumented = sync.OnceValues(func() (all []manifest, err error) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "kubernetes.md"))
	if err != nil {
		return nil, err
	}
	for i, block := range strings.Split(string(text), "```yaml\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		for in := yaml.NewDecoder(strings.NewReader(block)); ; {
			var o object
			if err := in.Decode(&o); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("block %d of YAML: %w", i+1, err)
			}
			m := manifest{}
			m.kind, _ = o["kind"].(string)
			m.version, _ = o["apiVersion"].(string)
			if meta, ok := o["metadata"].(object); ok {
				m.namespace, _ = meta["namespace"].(string)
			}
			if m.json, err = json.Marshal(o); err != nil {
				return nil, fmt.Errorf("block %d of YAML: %w", i+1, err)
			}
			all = append(all, m)
		}
	}
	return all, nil
})

// documented are the manifests of docs/kubernetes.md.
func documented(t testing.TB) []manifest {
	t.Helper()
	all, err := readDocumented()
	must(t, err)
	return all
}

// Every manifest of the documents is one that an API server takes, down to its last field.
func TestManifestsOfTheDocuments(t *testing.T) {
	t.Parallel()
	b := newBareBed(t)
	kinds := make(map[string]bool)
	for _, m := range documented(t) {
		if m.kind == "" {
			continue // a part of one
		}
		kinds[m.kind] = true
		if resources[m.kind] == "" {
			t.Errorf("kind %s is none that this test knows", m.kind)
			continue
		}
		err := admin.do(t.Context(), http.MethodPost, m.path(b.namespace)+"?dryRun=All&fieldValidation=Strict", "", m.in(b.namespace), nil)
		if err != nil && !hasCode(err, http.StatusConflict) { // the account is there
			t.Errorf("%s: %v\n%s", m.kind, err, m.json)
		}
	}
	for _, kind := range []string{"Role", "RoleBinding", "Deployment"} {
		if !kinds[kind] {
			t.Errorf("docs/kubernetes.md shows no %s", kind)
		}
	}
}
