package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/config/configtest"
	"github.com/sluice-router/sluice/internal/discovery"
)

// bed is a source that runs against an API server, in virtual time.
type bed struct {
	*apiServer
	t *testing.T

	mu       sync.Mutex
	readings []discovery.Reading
}

const testMaxObjects = 2000

func inBubble(t *testing.T, change func(*config.Config), prepare func(*apiServer), f func(b *bed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bed{apiServer: newAPIServer(), t: t}
		if prepare != nil {
			prepare(b.apiServer)
		}
		source, err := New(Options{
			Config: configtest.New(func(c *config.Config) {
				whole(c)
				c.Kubernetes.Namespace = "llm"
				if change != nil {
					change(c)
				}
			}),
			maxObjects: testMaxObjects,
			client:     &rest.Config{Host: "http://api.test", Transport: inProcess{b.apiServer}},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			source.Run(ctx, b.report)
		}()
		b.pass(time.Second)
		f(b)
		cancel()
		<-done
		b.cut()
		synctest.Wait()
	})
}

func (b *bed) report(r discovery.Reading) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.readings = append(b.readings, r)
}

func (b *bed) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (b *bed) last() discovery.Reading {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.readings) == 0 {
		b.t.Fatal("there is no reading")
	}
	return b.readings[len(b.readings)-1]
}

func (b *bed) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.readings)
}

// want compares the last reading with its workers, one a line.
func (b *bed) want(lines ...string) {
	b.t.Helper()
	r := b.last()
	if r.Err != nil {
		b.t.Errorf("the source fails: %v", r.Err)
		return
	}
	var got []string
	for i := range r.Workers {
		got = append(got, strings.TrimPrefix(describe(&r.Workers[i]), "regular http://"))
	}
	if strings.Join(got, "\n") != strings.Join(lines, "\n") {
		b.t.Errorf("workers\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
}

func (b *bed) wantWarning(part string) {
	b.t.Helper()
	w := b.last().Warnings
	if part == "" && len(w) > 0 || part != "" && !strings.Contains(strings.Join(w, "\n"), part) {
		b.t.Errorf("warnings %q, want %q", w, part)
	}
}

func (b *bed) wantError(part string) {
	b.t.Helper()
	if err := b.last().Err; err == nil || !strings.Contains(err.Error(), part) {
		b.t.Errorf("error %v, want %q", err, part)
	}
}

func TestThereIsAReadingAtOnceAndAfterEachChange(t *testing.T) {
	inBubble(t, nil, nil, func(b *bed) {
		b.want()
		const soon = 300 * time.Millisecond
		b.putPod(pod("a", "", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }))
		b.pass(soon)
		b.want()
		b.putPod(pod("a", "10.0.0.1", notReady))
		b.pass(soon)
		b.want("10.0.0.1:8000 not ready: the pod is not ready: containers with unready status: [engine]")
		b.putPod(pod("a", "10.0.0.1"))
		b.pass(soon)
		b.want("10.0.0.1:8000")
		b.putPod(pod("b", "10.0.0.2"))
		b.putPod(pod("c", "10.0.0.3", label("app", "other")))
		foreign := pod("d", "10.0.0.4")
		foreign.Namespace = "elsewhere"
		b.putPod(foreign)
		b.pass(soon)
		b.want("10.0.0.1:8000", "10.0.0.2:8000")
		// A label changes, and the pod is no worker any more. What it has it may finish.
		b.putPod(pod("b", "10.0.0.2", label("app", "other")))
		synctest.Wait()
		b.want("10.0.0.1:8000", "10.0.0.2:8000 leaving")
		b.pass(soon)
		b.want("10.0.0.1:8000")
		// Annotations count at once too.
		b.putPod(pod("a", "10.0.0.1", annotation(WorkerPortsAnnotation, "1,2")))
		b.pass(soon)
		b.want("10.0.0.1:1", "10.0.0.1:2")
		// The address changes and the name stays.
		b.putPod(pod("a", "10.0.0.9"))
		b.pass(soon)
		b.want("10.0.0.9:8000")
		by := metav1.NewTime(time.Now().Add(30 * time.Second).Truncate(time.Second))
		b.putPod(pod("a", "10.0.0.9", func(p *corev1.Pod) { p.DeletionTimestamp = &by }))
		b.pass(soon)
		b.want(fmt.Sprintf("10.0.0.9:8000 leaving by %d", by.Unix()))
		b.remove("pods", "llm/a", true)
		b.pass(soon)
		b.want()
		// Eviction: the pod stays, without an address.
		b.putPod(pod("e", "10.0.0.5"))
		b.pass(soon)
		b.putPod(pod("e", "", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }))
		b.pass(soon)
		b.want()
		if lists, watches := b.counts(); lists != 1 || watches != 1 {
			t.Errorf("%d lists and %d watches", lists, watches)
		}
	})
}

// A pod is deleted while the watch is away, and no event ever tells.
func TestALostDeleteIsFoundByTheNextList(t *testing.T) {
	two := func(s *apiServer) {
		s.putPod(pod("a", "10.0.0.1"))
		s.putPod(pod("b", "10.0.0.2"))
	}
	t.Run("the watch was cut", func(t *testing.T) {
		inBubble(t, nil, two, func(b *bed) {
			b.cut()
			b.remove("pods", "llm/a", false)
			b.pass(2 * time.Second)
			b.want("10.0.0.2:8000")
		})
	})
	t.Run("the server was away", func(t *testing.T) {
		inBubble(t, nil, two, func(b *bed) {
			b.setScript(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) })
			b.cut()
			b.pass(4 * time.Second)
			b.wantError("cannot list pods in namespace llm")
			b.remove("pods", "llm/a", false)
			b.setScript(nil)
			b.pass(maxPause + maxPause/2)
			b.want("10.0.0.2:8000")
		})
	})
	t.Run("the connection is alive and silent", func(t *testing.T) {
		inBubble(t, nil, two, func(b *bed) {
			b.setSilent(true)
			b.remove("pods", "llm/a", true)
			b.putPod(pod("c", "10.0.0.3"))
			b.pass(watchPeriod + watchPeriod/2 + watchSlack + time.Second)
			b.want("10.0.0.2:8000", "10.0.0.3:8000")
		})
	})
	t.Run("the event was lost on the way", func(t *testing.T) {
		inBubble(t, nil, two, func(b *bed) {
			b.remove("pods", "llm/a", false)
			b.pass(watchPeriod + watchPeriod/2 + time.Second)
			b.want("10.0.0.2:8000")
		})
	})
}

// Events that carry no pod end the watch, and never make a loop.
func TestErrorEventsAreNoPods(t *testing.T) {
	for name, event := range map[string]string{
		"gone":                `{"type":"ERROR","object":` + statusJSON(410, "Expired", "too old resource version: 339 (345)") + `}`,
		"an error":            `{"type":"ERROR","object":` + statusJSON(500, "InternalError", "etcd") + `}`,
		"too many requests":   `{"type":"ERROR","object":` + statusJSON(429, "TooManyRequests", "slow down") + `}`,
		"a status":            `{"type":"MODIFIED","object":` + statusJSON(410, "Expired", "x") + `}`,
		"an unknown kind":     `{"type":"MODIFIED","object":{"kind":"Table","apiVersion":"meta.k8s.io/v1"}}`,
		"an unknown type":     `{"type":"EXPLODED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"x"},"status":"a string"}}`,
		"a pod that is wrong": `{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"x"},"status":"a string"}}`,
		"no object":           `{"type":"ADDED"}`,
		"no JSON":             `<html>`,
		"half of an event":    `{"type":"ADDED","object":{"kind"`,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(s *apiServer) { s.putPod(pod("a", "10.0.0.1")) }, func(b *bed) {
				// One of them, and what it hides.
				b.say(event)
				b.remove("pods", "llm/a", false)
				b.putPod(pod("b", "10.0.0.2"))
				if name == "half of an event" {
					b.cut()
				}
				b.pass(3 * time.Second)
				b.want("10.0.0.2:8000")

				// Nothing but them.
				b.setScript(func(w http.ResponseWriter, r *http.Request) bool {
					if r.URL.Query().Get("watch") == "" {
						return false
					}
					w.Header().Set("Content-Type", "application/json")
					fmt.Fprintln(w, event)
					return true
				})
				b.cut()
				before, _ := b.counts()
				b.pass(time.Minute)
				lists, _ := b.counts()
				if n := lists - before; n < 5 || n > 20 {
					t.Errorf("%d lists in a minute", n)
				}
				b.remove("pods", "llm/b", false)
				b.pass(maxPause + maxPause/2)
				b.want()
			})
		})
	}
}

// What the server says of one pod is believed at once: it is reported as leaving before it
// is not declared any more. A list that lacks a pod says nothing of it.
func TestWhatIsSaidOfAPodIsNoDropOfAList(t *testing.T) {
	deleted := metav1.NewTime(time.Date(2000, 1, 1, 0, 1, 0, 0, time.UTC)) // the bubble's time begins with 2000
	for _, tc := range []struct {
		name   string
		change func(b *bed)
		want   []string // the readings that follow
	}{
		{"deleted by force", func(b *bed) {
			now := metav1.Now()
			b.putPod(pod("a", "10.0.0.1", func(p *corev1.Pod) { p.DeletionTimestamp = &now }))
			b.remove("pods", "llm/a", true)
		}, []string{"10.0.0.1:8000 leaving by 946684801", ""}},
		{"no more, whyever", func(b *bed) { b.remove("pods", "llm/a", true) }, []string{"10.0.0.1:8000 leaving", ""}},
		{"evicted", func(b *bed) { b.putPod(pod("a", "", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })) }, []string{"10.0.0.1:8000 leaving by 946684801", ""}},
		{"not selected any more", func(b *bed) { b.putPod(pod("a", "10.0.0.1", label("app", "x"))) }, []string{"10.0.0.1:8000 leaving", ""}},
		{"another address", func(b *bed) { b.putPod(pod("a", "10.0.0.2")) }, []string{"10.0.0.2:8000, 10.0.0.1:8000 leaving by 946684801", "10.0.0.2:8000"}},
		{"another port", func(b *bed) { b.putPod(pod("a", "10.0.0.1", annotation(WorkerPortsAnnotation, "1"))) }, []string{"10.0.0.1:1, 10.0.0.1:8000 leaving", "10.0.0.1:1"}},
		{"deleted with grace, then by force", func(b *bed) {
			b.putPod(pod("a", "10.0.0.1", func(p *corev1.Pod) { p.DeletionTimestamp = &deleted }))
			b.pass(time.Second)
			b.remove("pods", "llm/a", true)
		}, []string{"10.0.0.1:8000 leaving by 946684860", "10.0.0.1:8000 leaving by 946684802", ""}},
		{"evicted while the watch was away", func(b *bed) {
			b.store("pods", &metav1.ObjectMeta{Namespace: "llm", Name: "a", Labels: map[string]string{"app": "engine"}},
				pod("a", "", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), false)
			b.cut()
		}, []string{"10.0.0.1:8000 leaving by 946684801", ""}},
		{"another pod of the name while the watch was away", func(b *bed) {
			p := pod("a", "10.0.0.9", uid("2"))
			b.store("pods", &p.ObjectMeta, p, false)
			b.cut()
		}, []string{"10.0.0.9:8000, 10.0.0.1:8000 leaving by 946684801", "10.0.0.9:8000"}},
		{"deleted while the watch was away", func(b *bed) {
			b.remove("pods", "llm/a", false)
			b.cut()
		}, []string{""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, nil, func(s *apiServer) { s.putPod(pod("a", "10.0.0.1")) }, func(b *bed) {
				n := b.count()
				tc.change(b)
				b.pass(500 * time.Millisecond)
				var got []string
				for _, r := range b.readings[n:] {
					var workers []string
					for i := range r.Workers {
						workers = append(workers, strings.TrimPrefix(describe(&r.Workers[i]), "regular http://"))
					}
					got = append(got, strings.Join(workers, ", "))
				}
				got = slices.Compact(got) // events may come one by one or together
				if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", tc.want) {
					t.Errorf("readings %q, want %q", got, tc.want)
				}
			})
		})
	}
}

func TestBookmarksMeanNothing(t *testing.T) {
	inBubble(t, nil, func(s *apiServer) { s.putPod(pod("a", "10.0.0.1")) }, func(b *bed) {
		n := b.count()
		b.say(`{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"12746"}}}`)
		b.pass(time.Second)
		b.want("10.0.0.1:8000")
		if b.count() != n {
			t.Error("a bookmark makes a reading")
		}
	})
}

// Fields that mean nothing here change all the time.
func TestEventsWithoutAChangeMakeNoReading(t *testing.T) {
	inBubble(t, nil, func(s *apiServer) { s.putPod(pod("a", "10.0.0.1")) }, func(b *bed) {
		n := b.count()
		for i := range 20 {
			b.putPod(pod("a", "10.0.0.1", annotation("heartbeat", fmt.Sprint(i))))
			b.pass(time.Second)
		}
		if b.count() != n {
			t.Errorf("%d readings", b.count()-n)
		}
	})
}

func TestAStormOfEventsMakesFewReadings(t *testing.T) {
	inBubble(t, nil, nil, func(b *bed) {
		n := b.count()
		for i := range 1000 {
			b.putPod(pod(fmt.Sprintf("p%03d", i), fmt.Sprintf("10.0.%d.%d", i/250, i%250)))
			b.pass(time.Millisecond)
		}
		b.pass(reportPause)
		if len(b.last().Workers) != 1000 || b.count()-n > 12 {
			t.Errorf("%d workers after %d readings", len(b.last().Workers), b.count()-n)
		}
	})
}

// A name comes back as another pod. What is said of the former one is void.
func TestANameComesBackAsAnotherPod(t *testing.T) {
	inBubble(t, nil, func(s *apiServer) { s.putPod(pod("a", "10.0.0.1", uid("1"))) }, func(b *bed) {
		b.remove("pods", "llm/a", false)
		b.putPod(pod("a", "10.0.0.1", uid("2")))
		b.pass(time.Second)
		if w := b.last().Workers; len(w) != 1 || w[0].Identity != "2" {
			t.Fatalf("workers %v", w)
		}
		b.say(`{"type":"DELETED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"namespace":"llm","name":"a","uid":"1","labels":{"app":"engine"}}}}`)
		b.pass(time.Second)
		b.want("10.0.0.1:8000")
	})
}

func TestAPodPastItsGracePeriodIsGone(t *testing.T) {
	inBubble(t, nil, nil, func(b *bed) {
		by := metav1.NewTime(time.Now().Add(30 * time.Second))
		b.putPod(pod("a", "10.0.0.1", func(p *corev1.Pod) { p.DeletionTimestamp = &by }))
		b.pass(29 * time.Second)
		if w := b.last().Workers; len(w) != 1 || !w[0].Leaving {
			t.Errorf("workers %v", w)
		}
		b.pass(2 * watchPeriod)
		b.want()
	})
}

func TestListsAreReadInPages(t *testing.T) {
	many := func(s *apiServer) {
		for i := range 1200 {
			s.putPod(pod(fmt.Sprintf("p%04d", i), fmt.Sprintf("10.0.%d.%d", i/250, i%250)))
		}
	}
	inBubble(t, nil, many, func(b *bed) {
		if n := len(b.last().Workers); n != 1200 {
			t.Errorf("%d workers", n)
		}
		if n := len(b.requests); n != 4 || !strings.Contains(b.requests[2], "continue=1000") || !strings.Contains(b.requests[2], "limit=500") {
			t.Errorf("requests %q", b.requests)
		}
		if !strings.Contains(b.requests[0], "/api/v1/namespaces/llm/pods?") || !strings.Contains(b.requests[0], "labelSelector=app%3Dengine") {
			t.Errorf("the first request is %q", b.requests[0])
		}
	})
	t.Run("the version is forgotten between two pages", func(t *testing.T) {
		times := 0
		inBubble(t, nil, func(s *apiServer) {
			many(s)
			s.script = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Query().Get("continue") != "1000" || times == 1 {
					return false
				}
				times++
				s.remove("pods", "llm/p0000", false)
				status(w, 410, "Expired", "The provided continue parameter is too old")
				return true
			}
		}, func(b *bed) {
			if n := len(b.last().Workers); n != 1199 || times != 1 {
				t.Errorf("%d workers after %d failures", n, times)
			}
		})
	})
}

// A server whose list never ends.
func TestAListWithoutAnEndIsAFailure(t *testing.T) {
	for pause, want := range map[time.Duration]string{0: "the list has more than 400 pages of 500 objects", time.Second: "context deadline exceeded"} {
		inBubble(t, nil, func(s *apiServer) {
			s.script = func(w http.ResponseWriter, r *http.Request) bool {
				select {
				case <-time.After(pause):
				case <-r.Context().Done():
				}
				fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1","continue":"more"},"items":[]}`)
				return true
			}
		}, func(b *bed) {
			b.pass(listTimeout)
			b.wantError(want)
		})
	}
}

func TestMoreObjectsThanAreKeptAreAFailure(t *testing.T) {
	inBubble(t, nil, func(s *apiServer) {
		for i := range testMaxObjects - 1 {
			s.putPod(pod(fmt.Sprintf("p%05d", i), ""))
		}
	}, func(b *bed) {
		b.putPod(pod("a", "10.0.0.1"))
		b.pass(time.Second)
		b.want("10.0.0.1:8000")
		b.putPod(pod("b", "10.0.0.2"))
		b.pass(time.Second)
		b.wantError("there are more than 2000: the selector should match fewer")
		b.remove("pods", "llm/a", true)
		b.pass(maxPause + maxPause/2)
		b.want("10.0.0.2:8000")
	})
}

// One object that cannot be decoded is left out, and all others are served.
func TestAnObjectThatCannotBeReadIsLeftOut(t *testing.T) {
	inBubble(t, nil, func(s *apiServer) {
		s.putPod(pod("a", "10.0.0.1"))
		s.put("pods", &metav1.ObjectMeta{Namespace: "llm", Name: "odd", Labels: map[string]string{"app": "engine"}},
			map[string]any{"kind": "Pod", "metadata": map[string]any{"namespace": "llm", "name": "odd", "labels": map[string]any{"app": "engine"}}, "status": "a string"})
		s.putPod(pod("z", "10.0.0.2"))
	}, func(b *bed) {
		b.want("10.0.0.1:8000", "10.0.0.2:8000")
		b.wantWarning("pods llm/odd: it cannot be read and is left out")
	})
}

func TestTheServerIsAskedAgainWithPausesThatGrow(t *testing.T) {
	inBubble(t, nil, func(s *apiServer) {
		s.putPod(pod("a", "10.0.0.1"))
		s.script = func(w http.ResponseWriter, _ *http.Request) bool {
			status(w, 500, "InternalError", "etcd is away")
			return true
		}
	}, func(b *bed) {
		b.pass(5 * time.Minute)
		b.wantError("cannot list pods in namespace llm: etcd is away")
		lists, _ := b.counts()
		if lists < 20 || lists > 70 {
			t.Errorf("%d lists in five minutes", lists)
		}
		b.setScript(nil)
		b.pass(maxPause + maxPause/2)
		b.want("10.0.0.1:8000")
	})
}

// With 429 the server says when to come back. It is not believed without bound.
func TestTooManyRequests(t *testing.T) {
	for after, want := range map[string]time.Duration{"7": 7 * time.Second, "86400": maxRetryAfter} {
		inBubble(t, nil, func(s *apiServer) {
			s.putPod(pod("a", "10.0.0.1"))
			s.script = func(w http.ResponseWriter, _ *http.Request) bool {
				w.Header().Set("Retry-After", after)
				status(w, 429, "TooManyRequests", "too many requests, please try again later")
				return true
			}
		}, func(b *bed) {
			b.wantError("too many requests")
			b.setScript(nil)
			b.pass(want - 1500*time.Millisecond)
			if lists, _ := b.counts(); lists != 1 {
				t.Errorf("%s: %d lists", after, lists)
			}
			b.pass(2 * time.Second)
			b.want("10.0.0.1:8000")
		})
	}
}

// An event can say it too.
func TestTooManyRequestsInAWatch(t *testing.T) {
	inBubble(t, nil, nil, func(b *bed) {
		b.say(`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429,"details":{"retryAfterSeconds":7}}}`)
		b.pass(6900 * time.Millisecond)
		if lists, _ := b.counts(); lists != 1 {
			t.Errorf("%d lists", lists)
		}
		b.pass(time.Second)
		if lists, _ := b.counts(); lists != 2 {
			t.Errorf("%d lists", lists)
		}
	})
}

func TestRightsThatAreMissing(t *testing.T) {
	forbid := func(which string) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("watch") != which {
				return false
			}
			status(w, 403, "Forbidden", `pods is forbidden: User "system:serviceaccount:llm:sluice" cannot do it`)
			return true
		}
	}
	t.Run("list", func(t *testing.T) {
		inBubble(t, nil, func(s *apiServer) {
			s.putPod(pod("a", "10.0.0.1"))
			s.script = forbid("")
		}, func(b *bed) {
			b.wantError("(its role needs get, list and watch of pods)")
			b.setScript(nil)
			b.pass(maxPause + maxPause/2)
			b.want("10.0.0.1:8000")
		})
	})
	t.Run("watch", func(t *testing.T) {
		inBubble(t, nil, func(s *apiServer) {
			s.putPod(pod("a", "10.0.0.1"))
			s.script = forbid("true")
		}, func(b *bed) {
			b.want("10.0.0.1:8000")
			b.wantWarning("cannot watch pods in namespace llm")
			b.putPod(pod("b", "10.0.0.2"))
			b.pass(maxPause + maxPause/2)
			b.want("10.0.0.1:8000", "10.0.0.2:8000")
			b.setScript(nil)
			b.pass(maxPause + maxPause/2)
			b.wantWarning("")
		})
	})
}

// A server that accepts a request and says nothing.
func TestAServerThatDoesNotAnswer(t *testing.T) {
	stuck := func(_ http.ResponseWriter, r *http.Request) bool {
		<-r.Context().Done()
		return true
	}
	inBubble(t, nil, func(s *apiServer) {
		s.putPod(pod("a", "10.0.0.1"))
		s.script = stuck
	}, func(b *bed) {
		b.pass(answerTimeout)
		b.wantError("context deadline exceeded")
		b.setScript(func(w http.ResponseWriter, r *http.Request) bool {
			return r.URL.Query().Get("watch") == "true" && stuck(w, r)
		})
		b.pass(answerTimeout + maxPause) // the list that is under way is given up first
		b.want("10.0.0.1:8000")
		b.remove("pods", "llm/a", false)
		b.pass(answerTimeout + time.Second)
		b.want()
	})
}

func TestRolesHaveOneListAndOneWatch(t *testing.T) {
	inBubble(t, func(c *config.Config) {
		split(c)
		c.Kubernetes.Selector = ""
	}, func(s *apiServer) {
		s.putPod(pod("a", "10.0.0.1", label("role", "prefill")))
		s.putPod(pod("b", "10.0.0.2", label("role", "decode")))
		s.putPod(pod("c", "10.0.0.3"))
	}, func(b *bed) {
		b.want("prefill http://10.0.0.1:8000", "decode http://10.0.0.2:8000")
		// A pod changes its role in one step.
		b.putPod(pod("a", "10.0.0.1", label("role", "both")))
		b.pass(time.Second)
		b.want("decode http://10.0.0.1:8000", "decode http://10.0.0.2:8000")
		b.putPod(pod("a", "10.0.0.1", label("role", "none")))
		b.pass(time.Second)
		b.want("decode http://10.0.0.2:8000")
		if len(b.requests) != 2 || !strings.Contains(b.requests[0], "labelSelector=app%3Dengine%2Crole+in+%28both%2Cdecode%2Cprefill%29") {
			t.Errorf("requests %q", b.requests)
		}
	})
}

// slice is an EndpointSlice whose Service has the label app: engine.
func (s *apiServer) putSlice(name string, change func(*discoveryv1.EndpointSlice)) {
	es := &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"},
		ObjectMeta:  metav1.ObjectMeta{Namespace: "llm", Name: name, UID: "s", Labels: map[string]string{"app": "engine"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	change(es)
	s.put("endpointslices", &es.ObjectMeta, es)
}

func endpoint(ip, podName string, ready, serving, terminating bool) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}}
	if podName != "" {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "llm", Name: podName, UID: pod(podName, "").UID}
	}
	return e
}

func TestPodsWinOverEndpointSlices(t *testing.T) {
	on := func(c *config.Config) { c.Kubernetes.EndpointSlices = true }
	inBubble(t, on, func(s *apiServer) {
		s.putPod(pod("a", "10.0.0.1", notReady))
		s.putPod(pod("follower", "10.0.0.5", label(leaderIndexLabel, "1")))
		s.putSlice("s1", func(es *discoveryv1.EndpointSlice) {
			es.Endpoints = []discoveryv1.Endpoint{
				endpoint("10.0.0.1", "a", true, true, false),        // its pod says another thing
				endpoint("10.0.0.5", "follower", true, true, false), // its pod is no worker
				endpoint("10.0.0.2", "b", true, true, false),        // its pod has no label of ours
				endpoint("10.0.0.3", "", false, true, false),        // there is no pod
				endpoint("10.0.0.4", "", false, true, true),
				{}, // nothing at all
			}
		})
		s.putSlice("s2", func(es *discoveryv1.EndpointSlice) {
			es.Endpoints = []discoveryv1.Endpoint{endpoint("10.0.0.2", "b", false, true, false), {Addresses: []string{"10.0.0.7"}}}
		})
		s.putSlice("s3", func(es *discoveryv1.EndpointSlice) {
			es.AddressType, es.Endpoints = discoveryv1.AddressTypeFQDN, []discoveryv1.Endpoint{{Addresses: []string{"x.example"}}}
		})
		s.putSlice("s4", func(es *discoveryv1.EndpointSlice) {
			es.Labels["app"] = "other"
			es.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.8"}}}
		})
	}, func(b *bed) {
		b.pass(time.Second)
		b.want("10.0.0.1:8000 not ready: the pod is not ready: containers with unready status: [engine]",
			"10.0.0.2:8000", "10.0.0.3:8000 not ready: the endpoint is not ready (serving: true)", "10.0.0.4:8000 leaving", "10.0.0.7:8000")
		b.wantWarning("endpointslice llm/s3: its endpoints are names and not addresses (addressType FQDN); it is left out")
		if w := b.last().Workers[1]; w.Identity != "uid-b" || w.Labels[PodNameLabel] != "b" || w.Origin != "endpointslice llm/s1 (pod llm/b)" {
			t.Errorf("worker of b: %+v", w)
		}
		b.remove("endpointslices", "llm/s1", true)
		b.pass(time.Second)
		b.want("10.0.0.1:8000 not ready: the pod is not ready: containers with unready status: [engine]",
			"10.0.0.2:8000 not ready: the endpoint is not ready (serving: true)", "10.0.0.7:8000")
	})
}

func TestPodsAreServedWithoutEndpointSlices(t *testing.T) {
	inBubble(t, func(c *config.Config) { c.Kubernetes.EndpointSlices = true }, func(s *apiServer) {
		s.putPod(pod("a", "10.0.0.1"))
		s.putSlice("s1", func(es *discoveryv1.EndpointSlice) {
			es.Endpoints = []discoveryv1.Endpoint{endpoint("10.0.0.2", "", true, true, false)}
		})
	}, func(b *bed) {
		b.want("10.0.0.1:8000", "10.0.0.2:8000")
		b.setScript(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "endpointslices") {
				return false
			}
			status(w, 403, "Forbidden", "endpointslices.discovery.k8s.io is forbidden")
			return true
		})
		b.cut()
		b.putPod(pod("c", "10.0.0.3"))
		b.pass(3 * time.Second)
		b.want("10.0.0.1:8000", "10.0.0.3:8000", "10.0.0.2:8000")
		b.wantWarning("cannot list endpointslices in namespace llm: endpointslices.discovery.k8s.io is forbidden (its role needs get, list and watch of endpointslices); what was last known of them is used")
	})
}

// An end in any state leaves nothing behind: the leak check of the package sees it.
func TestItEndsInAnyState(t *testing.T) {
	for name, script := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"watching": nil,
		"waiting for a list": func(_ http.ResponseWriter, r *http.Request) bool {
			<-r.Context().Done()
			return true
		},
		"in a pause": func(w http.ResponseWriter, _ *http.Request) bool {
			status(w, 500, "InternalError", "x")
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(s *apiServer) { s.script = script }, func(*bed) {})
		})
	}
}

func TestSelectorsThatDoNotParseAreNamed(t *testing.T) {
	_, err := New(Options{Config: configtest.New(func(c *config.Config) {
		whole(c)
		c.Kubernetes.Selector = "app in ("
	})})
	if err == nil || !strings.Contains(err.Error(), `--selector: "app in (" is no label selector`) {
		t.Errorf("error %v", err)
	}
	if _, err = New(Options{Config: configtest.New(func(c *config.Config) {
		whole(c)
		c.Kubernetes.Kubeconfig = "/does/not/exist"
	})}); err == nil || errors.Is(err, rest.ErrNotInCluster) || !strings.Contains(err.Error(), "/does/not/exist") {
		t.Errorf("error %v", err)
	}
}
