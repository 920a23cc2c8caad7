package fleet

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/workerurl"
)

// What requests have ordered of the worker at a URL is one document, and the same at all
// members: its registration, or that it was removed although sources declare it, or what
// was changed of it.

// order is such a document. The zero value orders nothing.
type order struct {
	// Registered is a worker that was registered by request; with Drained.
	Registered *workerDocument `json:"registered,omitempty"`
	// Removed: what sources declare is held out, if it has the Identity.
	Removed  bool   `json:"removed,omitempty"`
	Identity string `json:"identity,omitempty"`
	// Changed is what was changed of a worker that a source declares; with Drained.
	Changed *overlayDocument `json:"changed,omitempty"`
	Drained bool             `json:"drained,omitempty"`
}

// workerDocument is a worker's settings, whole. Files that it names are each member's own.
type workerDocument struct {
	config.Worker
	BootstrapPort any               `json:"bootstrap_port,omitempty"` // as a request has it
	APIKey        string            `json:"api_key,omitempty"`        // the embedded one is hidden when it is written
	HTTP2         bool              `json:"http2,omitempty"`
	TLS           *config.WorkerTLS `json:"tls,omitempty"`
}

func documentOf(w config.Worker) *workerDocument {
	d := &workerDocument{Worker: w, APIKey: w.APIKey.Reveal(), HTTP2: w.HTTP2}
	switch p := w.BootstrapPort; p {
	case config.BootstrapAuto:
	case config.BootstrapNone:
		d.BootstrapPort = p.String()
	default:
		d.BootstrapPort = int(p)
	}
	if !w.TLS.IsZero() {
		d.TLS = &w.TLS
	}
	return d
}

// UnmarshalJSON reads settings as they were written by documentOf.
func (d *workerDocument) UnmarshalJSON(data []byte) error {
	var x struct {
		config.Worker
		HTTP2 bool              `json:"http2"`
		TLS   *config.WorkerTLS `json:"tls"`
	}
	if err := json.Unmarshal(data, &x); err != nil {
		return err
	}
	d.Worker = x.Worker
	d.Worker.HTTP2 = x.HTTP2
	if x.TLS != nil {
		d.Worker.TLS = *x.TLS
	}
	if d.Worker.Type == "" {
		d.Worker.Type = config.WorkerRegular
	}
	return nil
}

// overlayDocument is an overlay, written down.
type overlayDocument struct {
	Values *workerDocument   `json:"values,omitempty"`
	Fields []string          `json:"fields,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
}

func documentOfOverlay(o *overlay) *overlayDocument {
	d := &overlayDocument{Fields: o.fields, Labels: o.labels}
	if len(o.fields) > 0 {
		values := WorkerSpec{}
		for _, name := range o.fields {
			patchable[name](&values, &o.values)
		}
		d.Values = documentOf(values)
	}
	return d
}

// overlay is the overlay that d describes, without what nobody may set so.
func (d *overlayDocument) overlay() (o overlay) {
	if d == nil {
		return o
	}
	o.labels = maps.Clone(d.Labels)
	for _, name := range d.Fields {
		if set := patchable[name]; set != nil && name != fieldAPIKey && d.Values != nil && !slices.Contains(o.fields, name) {
			set(&o.values, &d.Values.Worker)
			o.fields = append(o.fields, name)
		}
	}
	slices.Sort(o.fields)
	return o
}

// noteOrderLocked tells that a request may have ordered something of the worker at url, or
// that such an order has ended.
func (f *Fleet) noteOrderLocked(url string) {
	if m := f.member; m != nil {
		m.changed[url] = true
		m.soon()
	}
}

// orderLocked is what is ordered of the worker at url, as a document; "": nothing.
func (m *membership) orderLocked(url string) (o order, body string) {
	f := m.f
	w := f.byURL[url]
	registered := w != nil && (!w.draining || w.leaving)
	h, held := f.heldOut[url]
	switch {
	case registered && w.source == SourceRequests:
		o = order{Registered: documentOf(w.declared), Drained: w.drained}
	case held:
		o = order{Removed: true, Identity: h.identity}
	case registered && (w.drained || len(w.overlay.names()) > 0 || m.orders[url].Changed != nil):
		// An order that was taken back wholly is one, too: the worker is as it is declared.
		o = order{Changed: documentOfOverlay(&w.overlay), Drained: w.drained}
	default:
		return o, ""
	}
	data, err := json.Marshal(&o)
	if err != nil {
		panic("BUG: an order about a worker cannot be written: " + err.Error())
	}
	return o, string(data)
}

// ordersLocked are the documents of what was ordered here since the last call.
func (m *membership) ordersLocked() (list []cluster.Document) {
	for _, url := range slices.Sorted(maps.Keys(m.changed)) {
		o, body := m.orderLocked(url)
		restored := m.restored[url]
		delete(m.restored, url)
		if body == m.known[url] {
			continue
		}
		m.setKnownLocked(url, o, body)
		list = append(list, cluster.Document{Key: url, Deleted: body == "", Body: []byte(body), Restored: restored})
	}
	clear(m.changed)
	return list
}

func (m *membership) setKnownLocked(url string, o order, body string) {
	if body == "" {
		delete(m.known, url)
		delete(m.orders, url)
		return
	}
	m.known[url], m.orders[url] = body, o
}

// takeOrder puts in force what was ordered at another member.
func (m *membership) takeOrder(d *cluster.Document) {
	f := m.f
	if d.Version.Compare(m.versions[d.Key]) < 0 {
		return // something was ordered here meanwhile
	}
	m.versions[d.Key] = d.Version
	base, err := workerurl.Parse(d.Key)
	var o order
	if err == nil && !d.Deleted {
		err = json.Unmarshal(d.Body, &o)
	}
	if err == nil && o.Registered != nil && o.Registered.URL != d.Key {
		err = errors.New("it is of another worker")
	}
	if err != nil || base.String() != d.Key {
		f.log.Warn("cluster: what another member tells of a worker cannot be used", "worker", d.Key, "writer", d.Version.Writer.String(), "error", errText(err))
		return
	}
	by := []any{"by", "another router of the cluster"}
	if o.Registered != nil {
		err = m.takeRegistration(d.Key, &o, by)
	} else {
		f.mu.Lock()
		if !m.supersededLocked(d.Key) {
			m.takeOrderLocked(d.Key, &o, by)
			m.tookLocked(d.Key, o, d.Deleted)
		}
		f.mu.Unlock()
	}
	if err != nil && !errors.Is(err, ErrClosed) {
		f.log.Warn("cluster: a worker that was registered at another router cannot be registered here", "worker", d.Key, "error", err.Error())
	}
}

func errText(err error) string {
	if err == nil {
		return "its URL is not in the usual spelling"
	}
	return err.Error()
}

// supersededLocked reports whether something was ordered here meanwhile: the others will be
// told of that, and it is the later one.
func (m *membership) supersededLocked(url string) bool {
	_, body := m.orderLocked(url)
	return m.changed[url] && body != m.known[url]
}

// tookLocked notes that an order of another member is in force, as far as is possible here:
// it is no order of this one.
func (m *membership) tookLocked(url string, o order, deleted bool) {
	_, body := m.orderLocked(url)
	delete(m.changed, url)
	if m.known[url] = body; body == "" {
		delete(m.known, url)
	}
	if m.orders[url] = o; deleted {
		delete(m.orders, url)
	}
}

// takeRegistration registers a worker as it was registered at another member.
func (m *membership) takeRegistration(url string, o *order, by []any) error {
	f := m.f
	spec, base, err := checkSpec(o.Registered.Worker, f.opts.Dialects)
	if err == nil && f.cfg.Fleet.PDDisaggregation == (spec.Type.Role() == admission.RoleRegular) {
		err = &SpecError{"worker_type", errors.New("this router's mode has no use for " + spec.Type.Role().String() + " workers")}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.supersededLocked(url) {
		return nil
	}
	defer m.tookLocked(url, *o, false)
	if err != nil {
		return err
	}
	ep, err := f.endpointForLocked(&spec)
	if err != nil {
		return err
	}
	old := f.byURL[url]
	here := old != nil && !old.draining && old.source == SourceRequests && !old.elsewhere
	w, _, err := f.addLocked(SourceRequests, spec, base, ep, by)
	if ep != nil && (w == nil || w.endpoint != ep) {
		ep.Close()
	}
	if err != nil {
		return err
	}
	if w.elsewhere != !here {
		w.elsewhere = !here
		f.noteRegistrationsLocked(SourceRequests)
	}
	f.setDrainedLocked(w, o.Drained, by)
	return nil
}

// takeOrderLocked puts in force what is no registration.
func (m *membership) takeOrderLocked(url string, o *order, by []any) {
	f := m.f
	w := f.byURL[url]
	if w != nil && w.draining && !w.leaving {
		w = nil
	}
	switch {
	case w == nil:
		// heldOutElsewhere and changedElsewhere have it when a source declares the worker.
	case o.Removed:
		if w.source == SourceRequests || w.sameIdentity(o.Identity) {
			f.removeLocked(w, by)
		}
	case o.Changed != nil:
		if w.source != SourceRequests && !w.draining {
			f.setOverlayLocked(w, o.Changed.overlay(), by)
			f.setDrainedLocked(w, o.Drained, by)
		}
	case w.source == SourceRequests:
		f.removeLocked(w, by)
	}
}

// holdOutElsewhereLocked reports whether a worker that a source declares, and that is not
// registered, was removed by request at another member.
func (f *Fleet) holdOutElsewhereLocked(source, url, identity string) bool {
	m := f.member
	if m == nil {
		return false
	}
	o, ok := m.orders[url]
	if !ok || !o.Removed || o.Identity != "" && identity != "" && o.Identity != identity {
		return false
	}
	if w := f.byURL[url]; w != nil && !w.draining {
		return false
	}
	f.heldOut[url] = heldOut{source, identity}
	_, body := m.orderLocked(url)
	m.known[url] = body // it was ordered elsewhere
	return true
}

// changedElsewhereLocked is what was changed of a worker that a source brings now.
func (f *Fleet) changedElsewhereLocked(url string) (o overlay, drained bool) {
	if f.member == nil {
		return o, false
	}
	x, ok := f.member.orders[url]
	if !ok || x.Changed == nil {
		return o, false
	}
	return x.Changed.overlay(), x.Drained
}
