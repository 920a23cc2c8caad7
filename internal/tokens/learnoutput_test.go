package tokens

import (
	"strconv"
	"testing"
)

func TestExpectedOutputIsAQuantile(t *testing.T) {
	l := NewOutputLearner(0)
	for range knownAnswers - 1 {
		l.Observe("m", 1000)
	}
	l.Observe("m", 0) // ignored
	if n := l.Expect("m"); n != FirstOutput {
		t.Fatalf("with too few answers known: %d", n)
	}
	l.Observe("m", 1000)
	if n := l.Expect("m"); n < 1000 || n > 1200 {
		t.Fatalf("answers of 1000 tokens: %d", n)
	}
	if n := l.Expect("other"); n != FirstOutput {
		t.Fatalf("another model: %d", n)
	}
	// Four of five answers fit.
	for i := range 4000 {
		n := int64(100)
		if i%4 == 0 {
			n = 4000
		}
		l.Observe("m", n)
	}
	if n := l.Expect("m"); n < 4000 || n > 4800 {
		t.Fatalf("a quarter of the answers is long: %d", n)
	}
	// Old answers count little.
	for range 2000 {
		l.Observe("m", 50)
	}
	if n := l.Expect("m"); n < 50 || n > 60 {
		t.Fatalf("after the traffic changed: %d", n)
	}
	l.Observe("m", 1<<60) // an implausible count of an engine
}

func TestExpectedOutputOfManyModels(t *testing.T) {
	l := NewOutputLearner(4)
	for range knownAnswers {
		l.Observe("kept", 10)
	}
	for i := range 100 {
		l.Observe(strconv.Itoa(i), 10)
		l.Observe("kept", 10)
	}
	if n := len(*l.models.Load()); n != 4 {
		t.Errorf("%d models are kept", n)
	}
	if n := l.Expect("kept"); n < 10 || n > 12 {
		t.Errorf("the model in use was forgotten: %d", n)
	}
}

func TestExpectAllocatesNothing(t *testing.T) {
	l := NewOutputLearner(0)
	l.Observe("m", 10)
	if n := testing.AllocsPerRun(100, func() { l.Expect("m") }); n != 0 {
		t.Error(n)
	}
}
