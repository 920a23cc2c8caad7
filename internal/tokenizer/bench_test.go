package tokenizer

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// mixedText is about a megabyte of the corpus: prose in many scripts, code, numbers.
func mixedText(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	strs := readRecorded(t, filepath.Join("testdata", "reference.json")).Strings
	for b.Len() < 1<<20 {
		for _, s := range strs {
			if len(s) > 20 && len(s) < 400 {
				b.WriteString(s)
				b.WriteByte('\n')
			}
		}
	}
	return b.String()
}

// englishText is prose and code in ASCII.
func englishText(t testing.TB) string {
	t.Helper()
	return strings.Map(func(r rune) rune {
		if r >= 0x80 {
			return -1
		}
		return r
	}, mixedText(t))
}

// randomText is n bytes of random characters, each byte's worth of which is hard to merge.
func randomText(n int) string {
	r := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	for b.Len() < n {
		if c := r.IntN(0x30000); c < 0xd800 || c >= 0xe000 {
			b.WriteRune(rune(c))
		}
	}
	return b.String()
}

func BenchmarkEncode(b *testing.B) {
	files := realFiles(b)
	texts := []struct{ name, text string }{
		{"mixed", mixedText(b)},
		{"english", englishText(b)},
		{"letter", strings.Repeat("a", 1<<20)},
		{"spaces", strings.Repeat(" ", 1<<20)},
		{"newlines", strings.Repeat("\n", 1<<20)},
		{"random", randomText(1 << 20)},
	}
	for name, data := range files {
		tok, err := Parse(data)
		if err != nil {
			b.Fatal(err)
		}
		for _, text := range texts {
			b.Run(name+"/"+text.name, func(b *testing.B) {
				b.SetBytes(int64(len(text.text)))
				b.ReportAllocs()
				var ids []uint32
				before := cpuTime()
				for b.Loop() {
					if ids, err = tok.Encode(context.Background(), ids[:0], text.text, true); err != nil {
						b.Fatal(err)
					}
				}
				// By the time of the processor: on a busy machine the other is of no use.
				b.ReportMetric(float64(len(text.text))*float64(b.N)/1e6/(cpuTime()-before).Seconds(), "MB/cpu-s")
			})
		}
	}
}

// cpuTime is the time of processors that the process has taken.
func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkParse(b *testing.B) {
	for name, data := range realFiles(b) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				tok, err := Parse(data)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(tok.MemoryBytes())/(1<<20), "MiB")
			}
		})
	}
}
