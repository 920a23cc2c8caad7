package classify

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
)

func TestClassify(t *testing.T) {
	bounds := Options{MinQueue: 100 * time.Millisecond, MaxQueue: 2 * time.Second}
	wait := func(d time.Duration) Request { return Request{MaxQueue: d, HasMaxQueue: true} }
	for _, tc := range []struct {
		name   string
		opts   Options
		header http.Header
		want   Request
		fails  bool
	}{
		{"nothing", bounds, nil, Request{}, false},
		{"class", bounds, http.Header{HeaderClass: {"batch"}}, Request{Class: "batch"}, false},
		{"alias", bounds, http.Header{HeaderClassAlias: {"a.B_9-"}}, Request{Class: "a.B_9-"}, false},
		{"both alike", bounds, http.Header{HeaderClass: {"x"}, HeaderClassAlias: {"x"}}, Request{Class: "x"}, false},
		{"both, one empty", bounds, http.Header{HeaderClass: {""}, HeaderClassAlias: {"x"}}, Request{Class: "x"}, false},
		{"both, different", bounds, http.Header{HeaderClass: {"x"}, HeaderClassAlias: {"y"}}, Request{}, true},
		{"twice, different", bounds, http.Header{HeaderClass: {"x", "y"}}, Request{}, true},
		{"twice, alike", bounds, http.Header{HeaderClass: {"x", "x"}}, Request{Class: "x"}, false},
		{"no class's name", bounds, http.Header{HeaderClass: {"no such class!"}}, Request{Class: NoSuchClass}, false},
		{"a control character", bounds, http.Header{HeaderClass: {"a\x00"}}, Request{Class: NoSuchClass}, false},
		{"the longest", bounds, http.Header{HeaderClass: {strings.Repeat("x", admission.MaxClassNameLen)}}, Request{Class: strings.Repeat("x", admission.MaxClassNameLen)}, false},
		{"too long", bounds, http.Header{HeaderClass: {strings.Repeat("x", admission.MaxClassNameLen+1)}}, Request{Class: NoSuchClass}, false},
		{"its stand-in", bounds, http.Header{HeaderClass: {NoSuchClass}}, Request{Class: NoSuchClass}, false},

		{"wait", bounds, http.Header{HeaderMaxQueue: {"1500"}}, wait(1500 * time.Millisecond), false},
		{"short wait", bounds, http.Header{HeaderMaxQueue: {"0"}}, wait(100 * time.Millisecond), false},
		{"long wait", bounds, http.Header{HeaderMaxQueue: {"2147483647"}}, wait(2 * time.Second), false},
		{"no bounds", Options{}, http.Header{HeaderMaxQueue: {"2147483647"}}, wait(2147483647 * time.Millisecond), false},
		{"none at all", Options{}, http.Header{HeaderMaxQueue: {"0"}}, wait(0), false},
		{"empty wait", bounds, http.Header{HeaderMaxQueue: {""}}, Request{}, false},
		{"negative", bounds, http.Header{HeaderMaxQueue: {"-1"}}, Request{}, true},
		{"signed", bounds, http.Header{HeaderMaxQueue: {"+1"}}, Request{}, true},
		{"a fraction", bounds, http.Header{HeaderMaxQueue: {"1.5"}}, Request{}, true},
		{"a word", bounds, http.Header{HeaderMaxQueue: {"soon"}}, Request{}, true},
		{"too large", bounds, http.Header{HeaderMaxQueue: {"2147483648"}}, Request{}, true},
		{"far too large", bounds, http.Header{HeaderMaxQueue: {strings.Repeat("9", 1000)}}, Request{}, true},
		{"two waits", bounds, http.Header{HeaderMaxQueue: {"1", "1"}}, Request{}, true},
	} {
		got, err := tc.opts.Classify(&Facts{Header: tc.header})
		if got != tc.want || (err != nil) != tc.fails {
			t.Errorf("%s: %+v, %v", tc.name, got, err)
		}
		if err != nil && (err.Status != 400 || len(err.Message) > 300) {
			t.Errorf("%s: status %d, %.400s", tc.name, err.Status, err.Message)
		}
	}
}

type rule func(*Facts, *Request)

func (f rule) Classify(facts *Facts, r *Request) { f(facts, r) }

func TestClassifierHasTheLastWord(t *testing.T) {
	o := Options{Classifier: rule(func(f *Facts, r *Request) {
		if r.Class != "from-header" || f.Pool != "m" || f.PromptTokens != 7 {
			t.Errorf("it sees %+v, %+v", f, r)
		}
		*r = Request{Class: "other", StrictPriority: 2, PriorityJump: 1.5, ClassDeadline: time.Second}
	})}
	got, err := o.Classify(&Facts{Header: http.Header{HeaderClass: {"from-header"}}, Pool: "m", PromptTokens: 7})
	if err != nil || got != (Request{Class: "other", StrictPriority: 2, PriorityJump: 1.5, ClassDeadline: time.Second}) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := o.Classify(&Facts{Header: http.Header{HeaderMaxQueue: {"x"}}}); err == nil {
		t.Error("a wrong header reaches the classifier")
	}
}

func TestHeadersAreCanonical(t *testing.T) {
	for _, h := range []string{HeaderClass, HeaderClassAlias, HeaderMaxQueue} {
		if got := http.CanonicalHeaderKey(h); got != h {
			t.Errorf("%s is written %s", h, got)
		}
	}
}

func TestClassifyAllocatesNothing(t *testing.T) {
	f := &Facts{Header: http.Header{HeaderClass: {"interactive"}, HeaderMaxQueue: {"250"}}}
	o := &Options{MaxQueue: time.Second}
	if n := testing.AllocsPerRun(100, func() {
		if r, err := o.Classify(f); err != nil || r.Class == "" {
			t.Error(r, err)
		}
	}); n > 0 {
		t.Errorf("%.0f allocations", n)
	}
}

func FuzzClassify(f *testing.F) {
	f.Add("interactive", "", "250")
	f.Add("", "batch", "-1")
	f.Add("a", "b", "1.5")
	f.Add("no such", "x", "99999999999")
	o := Options{MinQueue: time.Second, MaxQueue: time.Minute}
	f.Fuzz(func(t *testing.T, class, alias, wait string) {
		r, err := o.Classify(&Facts{Header: http.Header{HeaderClass: {class}, HeaderClassAlias: {alias}, HeaderMaxQueue: {wait}}})
		if err != nil {
			return
		}
		if len(r.Class) > admission.MaxClassNameLen || r.Class != NoSuchClass && r.Class != "" && !admission.ValidClassName(r.Class) {
			t.Errorf("class %q", r.Class)
		}
		if r.HasMaxQueue && (r.MaxQueue < o.MinQueue || r.MaxQueue > o.MaxQueue) {
			t.Errorf("wait %s", r.MaxQueue)
		}
	})
}
