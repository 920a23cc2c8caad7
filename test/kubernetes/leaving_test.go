//go:build kubernetes

package main

import (
	"testing"
	"time"
)

// A pod that is deleted gets nothing new from then on, and its streams go on for as long
// as the pod has.
func TestGracefulDeleteDrains(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	leaving := regular("leaving")
	leaving.grace, leaving.preStop = 30, 15 // engines end at once at SIGTERM
	p := b.start(leaving)[0]
	r := startRouter(t, b.selects(cluster.Server(0))...)
	r.sees(p)
	var streams []*stream
	for range 6 {
		streams = append(streams, r.stream(300))
	}
	eventually(t, "the streams run", func() string {
		if _, running := p.served(t); running < len(streams) {
			return "they do not yet"
		}
		return ""
	})
	other := b.start(regular("staying"))[0]
	r.sees(p, other)
	l := r.load()
	l.more(10)

	b.delete("leaving", -1)
	eventually(t, "the deleted pod is no candidate", func() string {
		if w := r.worker(p.url()); w.Status == "ready" {
			return w.String()
		}
		return ""
	})
	before, _ := p.served(t)
	l.more(40)
	if after, _ := p.served(t); after != before {
		t.Errorf("the deleted pod got %d requests more", after-before)
	}
	for _, s := range streams {
		if a := s.end(); !a.whole() {
			t.Errorf("a stream within the grace period: %s", a)
		}
	}
	r.sees(other)
	if _, there := b.get("leaving"); !there {
		t.Error("the pod was gone before its streams were over: the test shows nothing")
	}
	l.good()
}

// What does not come to its end within the grace period ends so that the client sees it,
// and no later than the pod.
func TestGracePeriodIsABound(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	short := regular("short")
	short.grace, short.preStop = 3, 3
	p := b.start(short)[0]
	r := startRouter(t, b.selects(cluster.Server(0))...)
	r.sees(p)
	s := r.stream(5000)
	whoRuns(t, p)
	deleted := time.Now()
	b.delete("short", -1)
	a := s.end()
	took := time.Since(deleted)
	if a.whole() || a.failed == "" || a.text == "" {
		t.Errorf("a stream that is longer than the grace period: %s", a)
	}
	if took < 2*time.Second { // the API counts whole seconds
		t.Errorf("it ended %s after the deletion, want the whole grace period of 3s", took)
	}
	b.gone("short")
	r.sees()
}

// A pod that is deleted and does not go, because something keeps it or its node is lost,
// is no worker after its grace period though its engine serves on; and a router that starts
// meanwhile does not take it for one.
func TestPodThatIsKept(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	kept := regular("kept").with(annotationGhost, "true")
	kept.grace, kept.finalizers = 2, []string{"testbed/kept"}
	pods := b.start(kept, regular("other"))
	r := startRouter(t, b.selects(cluster.Server(0))...)
	r.sees(pods...)
	l := r.load()
	l.more(10)
	b.delete("kept", -1)
	eventually(t, "the deleted pod is no candidate", func() string {
		if w := r.worker(pods[0].url()); w.Status == "ready" {
			return w.String()
		}
		return ""
	})
	pods[0].getsNothing(t, l)
	r.sees(pods[1])
	later := startRouter(t, b.selects(cluster.Server(0))...)
	later.sees(pods[1])
	if _, there := b.get("kept"); !there {
		t.Error("the pod is gone: the test shows nothing")
	}
	l.good()
	must(t, admin.Patch(t.Context(), podPath(b.namespace, "kept"), mergePatch, object{"metadata": object{"finalizers": nil}}))
}

// A pod that is deleted by force never shows when it is to go. What answers at its
// address afterwards is nobody's worker.
func TestForceDelete(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	pods := b.start(regular("a").with(annotationGhost, "true"), regular("b"))
	r := startRouter(t, b.selects(cluster.Server(0))...)
	r.sees(pods...)
	l := r.load()
	l.more(20)
	b.delete("a", 0)
	r.sees(pods[1])
	pods[0].getsNothing(t, l)
	l.begun()
}

// A pod with the name of one that is gone is another one: at another address, and at the
// same.
func TestPodIsCreatedAgain(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	pods := b.start(regular("a"), regular("other"))
	r := startRouter(t, b.selects(cluster.Server(0))...)
	r.sees(pods...)
	l := r.load()
	again := func(p pod, grace int) *Pod {
		t.Helper()
		l.more(20)
		b.delete("a", grace)
		b.gone("a")
		made := b.start(p)[0]
		r.sees(made, pods[1])
		eventually(t, "the worker is the new pod's", func() string {
			if w := r.worker(made.url()); w.Labels["smg.ai/pod-uid"] != made.Metadata.UID {
				return w.String()
			}
			return ""
		})
		l.more(20)
		eventually(t, "the new pod is used", func() string {
			if n, _ := made.served(t); n == 0 {
				return "it is not"
			}
			return ""
		})
		return made
	}
	second := again(regular("a"), -1)
	if second.url() == pods[0].url() {
		t.Errorf("both pods are at %s: the test shows nothing", second.url())
	}
	third := again(regular("a").with(annotationAddress, second.Status.PodIP), -1)
	if third.url() != second.url() {
		t.Errorf("the pod is at %s, want %s", third.url(), second.url())
	}
	l.good()
	// By force, what ran may break off.
	l = r.load()
	again(regular("a").with(annotationAddress, second.Status.PodIP), 0)
	l.begun()
}

// An address that goes to a pod of another model serves that model and no other.
func TestAddressGoesToAnotherModel(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	pods := b.start(regular("a"), regular("b"))
	r := startRouter(t, b.selects(cluster.Server(0))...)
	r.sees(pods...)
	l := r.load()
	l.more(10)
	b.delete("a", -1)
	b.gone("a")
	other := regular("c").with(annotationAddress, pods[0].Status.PodIP)
	other.args = append([]string{"--model", "other"}, quick...)
	c := b.start(other)[0]
	r.sees(c, pods[1])
	r.one(question{tokens: 2, model: "other"})
	if n, _ := c.served(t); n != 1 {
		t.Errorf("the pod of the other model got %d requests, want 1", n)
	}
	l.more(20)
	if n, _ := c.served(t); n != 1 {
		t.Errorf("the pod of the other model got %d requests, want 1", n)
	}
	l.good()
}
