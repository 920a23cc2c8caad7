package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/text"
)

const (
	// watchPeriod is the least time for which objects are watched before they are listed
	// again; up to half of it comes on top, so that routers do not list all at once.
	watchPeriod = 60 * time.Second
	// watchSlack is how long after its end, which the server was told, a watch may go on.
	// One that does is taken for a connection on which nothing arrives any more.
	watchSlack = 10 * time.Second
	// answerTimeout bounds one page of a list, and the time until a watch begins.
	answerTimeout = 30 * time.Second
	// firstPause is the pause after a round. It doubles with each round that was shorter
	// than steadyRound, up to maxPause, and is changed at random by up to its half.
	firstPause  = 200 * time.Millisecond
	maxPause    = 10 * time.Second
	steadyRound = 5 * time.Second
	// maxRetryAfter bounds the pause that a server asks for.
	maxRetryAfter = 60 * time.Second

	// A list has pages of pageSize objects, maxPages of them at most, and takes no longer than
	// listTimeout.
	pageSize    = 500
	maxPages    = 400
	listTimeout = 2 * time.Minute
	// maxObjects bounds how many objects of one kind are kept.
	maxObjects = 20_000
)

// watcher keeps the objects of one kind as the API server has them.
type watcher struct {
	// immutable
	kind      kind
	rules     *rules
	client    rest.Interface
	namespace string // "" for all
	selector  string
	most      int // objects that are kept
	closeIdle func()
	// changed is called after each list, each event that means something, and each
	// failure, without the lock.
	changed func()

	mu sync.Mutex
	// guarded by mu
	listed   bool
	objects  map[string]*object // by namespace and name
	departed []fleet.Declared   // workers that the server says are no more, not reported yet
	err      error              // of the last list
	// unwatched is why objects are only listed, unreadable says which of them could not be
	// decoded.
	unwatched  error
	unreadable []string
}

// run makes rounds until ctx ends.
func (w *watcher) run(ctx context.Context) {
	// What client-go would log is an error that it returns as well.
	ctx = klog.NewContext(ctx, logr.Discard())
	pause := firstPause
	for {
		began := time.Now()
		var asked askedPause
		err := w.round(context.WithValue(ctx, askedPauseKey{}, &asked))
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) >= steadyRound {
			pause = firstPause
		}
		wait := pause/2 + rand.N(pause)
		if secs, ok := apierrors.SuggestsClientDelay(err); ok {
			asked.wait = max(asked.wait, time.Duration(secs)*time.Second)
		}
		wait = max(wait, min(asked.wait, maxRetryAfter))
		pause = min(2*pause, maxPause)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// round lists the objects and watches them until the watch ends.
func (w *watcher) round(ctx context.Context) error {
	version, err := w.list(ctx)
	if err != nil {
		if ctx.Err() == nil {
			w.closeIdle()
			w.fail(err)
		}
		return err
	}
	err = w.watch(ctx, version)
	if errors.Is(err, errSilent) {
		w.closeIdle()
	}
	return err
}

func (w *watcher) fail(err error) {
	w.mu.Lock()
	w.err = w.explain("list", err)
	w.mu.Unlock()
	w.changed()
}

// explain says what an operator can do about an error.
func (w *watcher) explain(verb string, err error) error {
	where := "in all namespaces"
	if w.namespace != "" {
		where = "in namespace " + w.namespace
	}
	message := text.Clip(err.Error(), 500)
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("cannot %s %s %s: %s (its role needs get, list and watch of %s)", verb, w.kind.resource, where, message, w.kind.resource)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("cannot %s %s %s: %s (the API server does not accept the credentials)", verb, w.kind.resource, where, message)
	}
	return fmt.Errorf("cannot %s %s %s: %s", verb, w.kind.resource, where, message)
}

func (w *watcher) request() *rest.Request {
	r := w.client.Get().NamespaceIfScoped(w.namespace, w.namespace != "").Resource(w.kind.resource).MaxRetries(0)
	if w.selector != "" {
		r.Param("labelSelector", w.selector)
	}
	return r
}

// list reads all objects, page by page, and returns their version. They are what the
// server has now, not what a cache of it had: no version is asked for.
func (w *watcher) list(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var unreadable []string
	objects := map[string]*object{}
	next, restarted := "", false
	for n := 1; ; n++ {
		if n > maxPages {
			return "", fmt.Errorf("the list has more than %d pages of %d objects: the selector should match fewer", maxPages, pageSize)
		}
		page, err := w.page(ctx, next)
		if next != "" && apierrors.IsResourceExpired(err) && !restarted {
			// The list took longer than the server remembers its version.
			next, restarted, unreadable = "", true, nil
			clear(objects)
			continue
		}
		if err != nil {
			return "", err
		}
		unreadable = append(unreadable, page.unreadable...)
		maps.Copy(objects, page.objects)
		if len(objects) > w.most {
			return "", fmt.Errorf("there are more than %d: the selector should match fewer", w.most)
		}
		if next = page.next; next == "" {
			version = page.version
			break
		}
	}
	w.mu.Lock()
	for key, o := range objects {
		if old := w.objects[key]; old != nil {
			w.departLocked(old, o, false)
		}
	}
	w.listed, w.objects, w.err, w.unreadable = true, objects, nil, unreadable
	w.mu.Unlock()
	w.changed()
	return version, nil
}

// departLocked notes the workers of an object that its new state has no more. They are
// reported as leaving once: that a pod was deleted, has ended or is not selected any more
// is said of this pod, and must not be taken for a list that lacks it by mistake. now may
// be nil. deleted: the object is no more, and its engine neither.
func (w *watcher) departLocked(old, now *object, deleted bool) {
	for _, worker := range old.workers {
		if now != nil && slices.ContainsFunc(now.workers, func(d fleet.Declared) bool { return d.URL == worker.URL }) {
			continue
		}
		ended := deleted || now != nil && now.address != old.address
		switch {
		case ended && (!worker.Leaving || worker.LeaveBy.IsZero() || worker.LeaveBy.After(time.Now())):
			worker.Leaving, worker.LeaveBy = true, time.Now()
		case !worker.Leaving:
			worker.Leaving = true // the engine runs on, and may finish what it has
		}
		worker.NotReady = ""
		if len(w.departed) < w.most {
			w.departed = append(w.departed, worker)
		}
	}
}

// page is a part of a list.
type page struct {
	objects       map[string]*object
	unreadable    []string
	version, next string
}

func (w *watcher) page(ctx context.Context, next string) (*page, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	r := w.request().Param("limit", strconv.Itoa(pageSize))
	if next != "" {
		r.Param("continue", next)
	}
	result := r.Do(ctx)
	list := w.kind.newList()
	p := &page{objects: map[string]*object{}}
	if err := result.Into(list); err != nil {
		raw, rawErr := result.Raw()
		if rawErr != nil || !p.decodeEach(w, raw) {
			return nil, err
		}
		return p, nil
	}
	meta, ok := list.(metav1.ListInterface)
	if !ok {
		return nil, errors.New("BUG: a list without metadata")
	}
	p.version, p.next = meta.GetResourceVersion(), meta.GetContinue()
	w.kind.items(list, func(item runtime.Object) { p.add(w, item) })
	return p, nil
}

func (p *page) add(w *watcher, item runtime.Object) {
	if meta, o, ok := w.kind.translate(w.rules, item); ok && o != nil {
		p.objects[key(meta)] = o
	}
}

func key(meta *metav1.ObjectMeta) string { return meta.Namespace + "/" + meta.Name }

// maxUnreadable bounds how many objects that cannot be decoded are named.
const maxUnreadable = 5

// decodeEach takes the items of a list by themselves, where one of them cannot be decoded
// so that the list as a whole cannot. It reports whether this is a list at all.
func (p *page) decodeEach(w *watcher, raw []byte) bool {
	var list struct {
		Metadata *metav1.ListMeta  `json:"metadata"`
		Items    []json.RawMessage `json:"items"`
	}
	if json.Unmarshal(raw, &list) != nil || list.Metadata == nil {
		return false
	}
	p.version, p.next = list.Metadata.ResourceVersion, list.Metadata.Continue
	for _, one := range list.Items {
		item := w.kind.newItem()
		err := json.Unmarshal(one, item)
		if err == nil {
			p.add(w, item)
			continue
		}
		var named struct {
			Metadata struct{ Namespace, Name string } `json:"metadata"`
		}
		_ = json.Unmarshal(one, &named) // it may have no name either
		if len(p.unreadable) < maxUnreadable {
			p.unreadable = append(p.unreadable, fmt.Sprintf("%s %.64s/%.64s: it cannot be read and is left out: %s", w.kind.resource, named.Metadata.Namespace, named.Metadata.Name, text.Clip(err.Error(), 200)))
		}
	}
	return true
}

// errSilent is returned for a watch that did not end when it should.
var errSilent = errors.New("the connection of the watch is silent")

// watch takes over the changes since version until the watch ends, which is no error.
func (w *watcher) watch(ctx context.Context, version string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	period := watchPeriod + rand.N(watchPeriod/2)
	late := time.AfterFunc(answerTimeout, cancel)
	stream, err := w.request().Param("watch", "true").Param("allowWatchBookmarks", "true").Param("resourceVersion", version).
		Param("timeoutSeconds", strconv.Itoa(int(period.Seconds()))).Watch(ctx)
	if !late.Stop() && err == nil {
		stream.Stop()
		err = context.DeadlineExceeded
	}
	if err != nil {
		w.setUnwatched(ctx, err)
		return err
	}
	w.setUnwatched(ctx, nil)
	defer func() {
		stream.Stop()
		for range stream.ResultChan() { // until its goroutine has ended
		}
	}()
	end := time.NewTimer(period + watchSlack)
	defer end.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end.C:
			return errSilent
		case e, ok := <-stream.ResultChan():
			if !ok {
				return nil
			}
			if err := w.event(e); err != nil {
				return err
			}
		}
	}
}

// setUnwatched notes whether objects can be watched. An error that a new list mends is
// none, and one without an answer is met by the next list too.
func (w *watcher) setUnwatched(ctx context.Context, err error) {
	var status apierrors.APIStatus
	if ctx.Err() != nil || err != nil && (!errors.As(err, &status) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err)) {
		return
	}
	w.mu.Lock()
	changed := (w.unwatched == nil) != (err == nil)
	w.unwatched = err
	w.mu.Unlock()
	if changed {
		w.changed()
	}
}

// event takes over one event of a watch. After an error the objects must be listed anew:
// what comes after it cannot be relied upon.
func (w *watcher) event(e watch.Event) error {
	switch e.Type {
	case watch.Error:
		// The object is a Status, or whatever the server sent.
		return apierrors.FromObject(e.Object)
	case watch.Bookmark:
		return nil
	}
	meta, o, ok := w.kind.translate(w.rules, e.Object)
	if !ok {
		return fmt.Errorf("a watch of %s sent a %T", w.kind.resource, e.Object)
	}
	key := key(meta)
	w.mu.Lock()
	old := w.objects[key]
	switch {
	case e.Type == watch.Deleted && old != nil && old.uid != string(meta.UID):
		o = old // the one of that name before
	case e.Type == watch.Deleted:
		o = nil
	}
	full := o != nil && old == nil && len(w.objects) >= w.most
	changed := (o == nil) != (old == nil) || o != nil && !o.equal(old)
	if changed && old != nil && !full {
		// A watch calls deleted what its selector does not match any more, too, and shows
		// it as it was before. What is really deleted was said to be about to be, even if
		// by force; other kinds than pods may not be.
		w.departLocked(old, o, e.Type == watch.Deleted && meta.DeletionTimestamp != nil)
	}
	switch {
	case full:
	case o == nil:
		delete(w.objects, key)
	default:
		w.objects[key] = o
	}
	w.mu.Unlock()
	if full {
		return fmt.Errorf("there are more than %d %s", w.most, w.kind.resource)
	}
	if changed {
		w.changed()
	}
	return nil
}

// state is what the watcher knows now.
type state struct {
	listed   bool
	objects  map[string]*object // a copy
	departed []fleet.Declared
	err      error
	warnings []string
}

// state returns what is known, and forgets those that have departed.
func (w *watcher) state() state {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := state{listed: w.listed, objects: maps.Clone(w.objects), err: w.err, warnings: w.unreadable}
	if w.err == nil {
		s.departed, w.departed = w.departed, nil
	}
	if w.unwatched != nil {
		s.warnings = append([]string{w.explain("watch", w.unwatched).Error() + "; they are listed every few seconds instead"}, s.warnings...)
	}
	return s
}
