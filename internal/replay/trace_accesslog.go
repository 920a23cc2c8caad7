package replay

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-router/sluice/internal/kv"
)

// accessLog reads the log of the router: of its lines those of requests whose prompt was
// counted. Others are skipped.
type accessLog struct {
	trace *Trace
	base  time.Time // when the first request came

	prompts, blocks int64 // of the requests with hashes
}

// accessLine is what a replay needs of a line in the access log.
type accessLine struct {
	Msg    string    `json:"msg"`
	Time   time.Time `json:"time"`
	Total  float64   `json:"total_ms"`
	Prompt int64     `json:"prompt_tokens"`
	Output int64     `json:"output_tokens"`
	Hashes string    `json:"prefix_hashes"`
}

// ofOthers is why lines are skipped that are not of the log, but in its file: what the process
// is started by, and what ends it, write there as well.
const ofOthers = "of something else"

func (a *accessLog) read(line []byte) error {
	var l accessLine
	if line[0] != '{' && !bytes.HasPrefix(line, []byte("time=")) {
		a.trace.skip(ofOthers)
		return nil
	}
	if line[0] == '{' {
		if err := json.Unmarshal(line, &l); err != nil {
			return jsonError(err)
		}
	} else if err := l.parse(string(line)); err != nil {
		return err
	}
	switch {
	case l.Msg != "request":
		a.trace.skip("not of a request")
		return nil
	case l.Prompt == 0:
		a.trace.skip("without prompt_tokens")
		return nil
	case l.Time.IsZero():
		return errors.New("there is no time")
	case !(l.Total >= 0 && l.Total <= float64(maxTime.Milliseconds())):
		return fmt.Errorf("total_ms=%v is not a time", l.Total)
	}
	blocks, err := decodeHashes(l.Hashes)
	if err != nil {
		return err
	}
	came := l.Time.Add(-time.Duration(l.Total * float64(time.Millisecond)))
	if a.base.IsZero() {
		a.base = came
	}
	r := Request{At: came.Sub(a.base), Prompt: l.Prompt, Output: l.Output, Blocks: blocks}
	if n := int64(len(blocks)); n > 0 {
		r.BlockTokens = (l.Prompt + n - 1) / n
		if l.Prompt <= maxTokens {
			a.prompts += l.Prompt
			a.blocks += n
		}
	}
	return a.trace.add(r)
}

func (a *accessLog) end() error {
	if a.trace.BlockTokens = mooncakeBlock; a.blocks > 0 {
		a.trace.BlockTokens = max((a.prompts+a.blocks/2)/a.blocks, 1)
	}
	return nil
}

// decodeHashes reads prefix_hashes: the hashes of the prompt's blocks one after the other,
// eight bytes each, in base64.
func decodeHashes(s string) ([]kv.Key, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b)%8 != 0 {
		return nil, errors.New("prefix_hashes is not a row of hashes in base64")
	}
	keys := make([]kv.Key, len(b)/8)
	for i := range keys {
		keys[i] = kv.Key(binary.BigEndian.Uint64(b[8*i:]))
	}
	return keys, nil
}

// parse reads a line of key=value.
func (l *accessLine) parse(line string) error {
	for line != "" {
		name, rest, ok := strings.Cut(line, "=")
		if !ok {
			return fmt.Errorf("%.20q has no value", line)
		}
		var value string
		if strings.HasPrefix(rest, `"`) {
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				return fmt.Errorf("the value of %.20q has no end", name)
			}
			if value, err = strconv.Unquote(quoted); err != nil {
				return fmt.Errorf("the value of %.20q cannot be read", name)
			}
			line = strings.TrimLeft(rest[len(quoted):], " ")
		} else {
			value, line, _ = strings.Cut(rest, " ")
		}
		if err := l.set(name, value); err != nil {
			return fmt.Errorf("%s=%.40q cannot be read", name, value)
		}
	}
	return nil
}

func (l *accessLine) set(name, value string) (err error) {
	switch name {
	case "msg":
		l.Msg = value
	case "time":
		l.Time, err = time.Parse(time.RFC3339Nano, value)
	case "total_ms":
		l.Total, err = strconv.ParseFloat(value, 64)
	case "prompt_tokens":
		l.Prompt, err = strconv.ParseInt(value, 10, 64)
	case "output_tokens":
		l.Output, err = strconv.ParseInt(value, 10, 64)
	case "prefix_hashes":
		l.Hashes = value
	}
	return err
}
