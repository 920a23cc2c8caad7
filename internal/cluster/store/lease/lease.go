// Package lease keeps the record of a cluster in a Lease of Kubernetes.
//
// The record is in two annotations of the object, the revision and the value. What the
// object has for people to read is filled too: who wrote last is its holder. It is written
// with the resourceVersion that it had when the revision was compared, a moment before:
// what a member remembers from earlier is never sent as one, since a restored API server
// gives the same ones again.
//
// Needed are the verbs get, create and update on leases of the API group
// coordination.k8s.io in the namespace. An object that exists, without a holder, is used
// as it is; then create is not needed.
package lease

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/sluice-router/sluice/internal/cluster/store"
	"github.com/sluice-router/sluice/internal/kubeapi"
)

// Options of a store.
type Options struct {
	Cluster    string // the name of the Lease too
	Namespace  string // "" is that of the pod, or of the kubeconfig
	Kubeconfig string // see kubeapi.LoadConfig
	UserAgent  string
	// Holder is who holds the Lease by a value, for people to read. Where it says nothing
	// it is the name of the host.
	Holder func(value []byte) string
	Log    *slog.Logger
}

// Store implements store.Store.
type Store struct {
	namespace, name string
	holder          func(value []byte) string
	collection      string // URL of all Leases of the namespace
	http            *http.Client
	calls           *store.Calls
}

var _ store.Store = (*Store)(nil)

// pingAfter is how long an HTTP/2 connection may be silent before the server is asked for
// a sign of life.
const pingAfter = 10 * time.Second

// New returns the store. The API server is not asked yet.
func New(o Options) (*Store, error) {
	if err := store.CheckName(o.Cluster); err != nil {
		return nil, err
	}
	if o.Log != nil {
		kubeapi.RedirectLog(o.Log)
	}
	cfg, err := kubeapi.LoadConfig(o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("cannot find the API server of Kubernetes: %w", err)
	}
	namespace := o.Namespace
	if namespace == "" {
		if namespace, err = kubeapi.Namespace(o.Kubeconfig); err != nil {
			return nil, fmt.Errorf("cannot find the namespace for the Lease, write kubernetes://NAMESPACE: %w", err)
		}
	}
	base, path, err := rest.DefaultServerURL(cfg.Host, "/apis", schema.GroupVersion{Group: "coordination.k8s.io", Version: "v1"}, true)
	if err != nil {
		return nil, fmt.Errorf("cannot use the address of the API server of Kubernetes: %w", err)
	}
	c, err := kubeapi.NewClient(cfg, o.UserAgent, pingAfter)
	if err != nil {
		return nil, fmt.Errorf("cannot use the credentials for the API server of Kubernetes: %w", err)
	}
	return &Store{
		namespace: namespace, name: o.Cluster, holder: o.Holder,
		collection: base.JoinPath(path, "namespaces", url.PathEscape(namespace), "leases").String(),
		http:       c, calls: store.NewCalls(),
	}, nil
}

// The annotations of the object.
const (
	revisionAnnotation = "sluice/revision"
	recordAnnotation   = "sluice/record" // base64
)

// object is a Lease. What is not named here stays as it is when one is written again.
type object struct {
	all, metadata, spec map[string]json.RawMessage
	annotations         map[string]string
}

// Read implements store.Store.
func (s *Store) Read(ctx context.Context) (r store.Record, err error) {
	err = s.calls.Do(ctx, func(ctx context.Context) error {
		_, r, err = s.get(ctx)
		return err
	})
	return r, err
}

// Write implements store.Store.
func (s *Store) Write(ctx context.Context, value []byte, revision string) (newRevision string, err error) {
	if err := store.CheckWrite(value, revision); err != nil {
		return "", err
	}
	newRevision = store.NewRevision()
	err = s.calls.Do(ctx, func(ctx context.Context) error {
		o, r, err := s.get(ctx)
		switch {
		case err != nil:
			return err
		case r.Revision != revision:
			return store.ErrConflict
		}
		method, path := http.MethodPut, "/"+s.name
		if o == nil {
			method, path, o = http.MethodPost, "", s.create()
		}
		body, err := s.fill(o, value, newRevision, time.Now())
		if err != nil {
			return err
		}
		if _, err = s.send(ctx, method, path, body); errors.Is(err, errMissing) {
			return store.ErrConflict // it was deleted meanwhile
		}
		return err
	})
	if err != nil {
		return "", err
	}
	return newRevision, nil
}

// get returns the object, nil without one, and its record.
func (s *Store) get(ctx context.Context) (*object, store.Record, error) {
	body, err := s.send(ctx, http.MethodGet, "/"+s.name, nil)
	if errors.Is(err, errMissing) {
		return nil, store.Record{}, nil
	}
	if err != nil {
		return nil, store.Record{}, err
	}
	o, err := parse(body)
	if err != nil {
		return nil, store.Record{}, err
	}
	r, err := o.record()
	return o, r, err
}

func parse(body []byte) (*object, error) {
	o := &object{}
	err := json.Unmarshal(body, &o.all)
	for name, into := range map[string]*map[string]json.RawMessage{"metadata": &o.metadata, "spec": &o.spec} {
		if part := o.all[name]; err == nil && part != nil {
			err = json.Unmarshal(part, into)
		}
	}
	if part := o.metadata["annotations"]; err == nil && part != nil {
		err = json.Unmarshal(part, &o.annotations)
	}
	if err != nil || o.metadata["resourceVersion"] == nil {
		return nil, fmt.Errorf("%w: the answer is no Lease: %.40q", store.ErrForeign, body)
	}
	return o, nil
}

// record takes the record out of the object. One that exists and was never written to has
// none.
func (o *object) record() (store.Record, error) {
	revision, has := o.annotations[revisionAnnotation]
	if !has {
		if holder := o.text("holderIdentity"); holder != "" {
			return store.Record{}, fmt.Errorf("%w: the Lease is held by %.80q", store.ErrForeign, holder)
		}
		return store.Record{}, nil
	}
	value, err := base64.StdEncoding.DecodeString(o.annotations[recordAnnotation])
	if err != nil || !store.IsRevision(revision) || len(value) > store.MaxValue {
		return store.Record{}, fmt.Errorf("%w: its annotations %s and %s are no revision and no value", store.ErrForeign, revisionAnnotation, recordAnnotation)
	}
	return store.Record{Revision: revision, Value: value}, nil
}

// text returns a field of the object's spec, "" without one.
func (o *object) text(field string) (text string) {
	_ = json.Unmarshal(o.spec[field], &text) // or it is none
	return text
}

func (s *Store) create() *object {
	return &object{
		all:      map[string]json.RawMessage{"apiVersion": json.RawMessage(`"coordination.k8s.io/v1"`), "kind": json.RawMessage(`"Lease"`)},
		metadata: map[string]json.RawMessage{"name": quoted(s.name), "namespace": quoted(s.namespace)},
	}
}

// fill puts a record into the object and returns it as it is sent.
func (s *Store) fill(o *object, value []byte, revision string, now time.Time) ([]byte, error) {
	if o.annotations == nil {
		o.annotations = map[string]string{}
	}
	if o.spec == nil {
		o.spec = map[string]json.RawMessage{}
	}
	o.annotations[revisionAnnotation] = revision
	o.annotations[recordAnnotation] = base64.StdEncoding.EncodeToString(value)
	at := quoted(now.UTC().Format("2006-01-02T15:04:05.000000Z07:00"))
	o.spec["renewTime"] = at
	if holder, before := s.holderOf(value), o.text("holderIdentity"); holder != before {
		if before != "" {
			var transitions int32
			_ = json.Unmarshal(o.spec["leaseTransitions"], &transitions) // or it is none
			o.spec["leaseTransitions"] = json.RawMessage(fmt.Sprint(max(0, transitions) + 1))
		}
		o.spec["holderIdentity"], o.spec["acquireTime"] = quoted(holder), at
	}
	var err error
	for _, part := range []struct {
		of   map[string]json.RawMessage
		name string
		v    any
	}{{o.metadata, "annotations", o.annotations}, {o.all, "metadata", o.metadata}, {o.all, "spec", o.spec}} {
		if part.of[part.name], err = json.Marshal(part.v); err != nil {
			return nil, store.Refused(err)
		}
	}
	body, err := json.Marshal(o.all)
	if err != nil {
		return nil, store.Refused(err)
	}
	return body, nil
}

// holderOf is who holds the Lease by a value. A Lease has to have one.
func (s *Store) holderOf(value []byte) string {
	holder := ""
	if s.holder != nil {
		holder = s.holder(value)
	}
	host, _ := os.Hostname() // or it has none
	return cmp.Or(holder, host, "sluice")
}

// quoted is a string in JSON.
func quoted(s string) json.RawMessage {
	b, _ := json.Marshal(s) // a string can be marshalled
	return b
}

// errMissing: there is no such object.
var errMissing = errors.New("there is no such Lease")

// maxAnswer bounds an answer. API servers take objects of up to 1.5 MiB from most.
const maxAnswer = 2 << 20

// send makes one request and returns the body of a successful answer.
func (s *Store) send(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.collection+path, bytes.NewReader(body))
	if err != nil {
		return nil, store.Refused(err)
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := s.http.Do(req)
	if err == nil {
		defer resp.Body.Close()
		body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	}
	switch {
	case err != nil:
		// A server that is silent is asked on a new connection the next time.
		kubeapi.CloseIdle(s.http)
		if ctx.Err() != nil {
			return nil, store.Ended(ctx)
		}
		if store.IsTLSRefusal(err) {
			return nil, store.Refused(err)
		}
		return nil, store.Unavailable(err)
	case len(body) > maxAnswer:
		return nil, fmt.Errorf("%w: it is larger than %d bytes", store.ErrForeign, maxAnswer)
	case resp.StatusCode < 300:
		return body, nil
	}
	return nil, failure(resp.StatusCode, body)
}

// failure makes an error of an answer that is no success.
func failure(code int, body []byte) error {
	var status struct {
		Reason, Message string
		Details         struct{ Kind string }
	}
	if json.Unmarshal(body, &status) != nil || status.Message == "" {
		status.Message = fmt.Sprintf("%.80q", body)
	}
	err := fmt.Errorf("the API server answers %d: %.300s", code, status.Message)
	switch {
	case code == http.StatusNotFound && status.Reason == "NotFound" && status.Details.Kind == "leases":
		return errMissing
	case code == http.StatusConflict:
		return store.ErrConflict
	case code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code >= 500:
		return store.Unavailable(err)
	}
	return store.Refused(err)
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.calls.Close(func() { kubeapi.CloseIdle(s.http) })
	return nil
}

// String implements store.Store.
func (s *Store) String() string { return "kubernetes://" + s.namespace + " lease " + s.name }
