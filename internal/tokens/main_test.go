package tokens

import (
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-router/sluice/internal/openai"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func peek(t testing.TB, route openai.Route, body string) *openai.Peeked {
	t.Helper()
	p := new(openai.Peeked)
	if err := p.Read(route, []byte(body), openai.PeekOptions{}); err != nil {
		t.Fatalf("%.200s: %v", body, err)
	}
	return p
}

func chat(messages ...string) string {
	var b strings.Builder
	b.WriteString(`{"model":"m","messages":[`)
	for i, m := range messages {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"role":"user","content":%s}`, m)
	}
	b.WriteString(`]}`)
	return b.String()
}

func quote(s string) string { return `"` + s + `"` }

// escaped writes all characters beyond ASCII as escapes, as many clients do.
func escaped(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r < 0x80:
			b.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04X\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		}
	}
	return b.String()
}
