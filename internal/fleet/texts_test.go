package fleet

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/engine/dialects"
	"github.com/sluice-router/sluice/internal/textmodel"
	"github.com/sluice-router/sluice/internal/upstream"
)

// tinyTokenizer has one token for each letter.
const tinyTokenizer = `{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},"post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"vocab":VOCAB,"merges":[]}}`

// tinyFiles are the files of a model; first is the id of its first token.
func tinyFiles(reverse bool) map[string]string {
	letters := "abcdefghijklmnopqrstuvwxyz"
	var vocab []string
	for i := range letters {
		at := i
		if reverse {
			at = len(letters) - 1 - i
		}
		vocab = append(vocab, `"`+letters[i:i+1]+`":`+itoa(at))
	}
	return map[string]string{
		"tokenizer.json": strings.Replace(tinyTokenizer, "VOCAB", "{"+strings.Join(vocab, ",")+"}", 1),
		"config.json":    `{"max_position_embeddings":512,"vocab_size":26}`,
	}
}

func itoa(n int) string {
	return strings.TrimLeft(string([]byte{byte('0' + n/10), byte('0' + n%10)}), "0") + map[bool]string{true: "0"}[n == 0]
}

// zipOf is an archive whose files have a time: those of two hosts differ.
func zipOf(files map[string]string, at time.Time) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, content := range files {
		f, err := z.CreateHeader(&zip.FileHeader{Name: name, Modified: at, Method: zip.Deflate})
		if err != nil {
			panic(err)
		}
		_, _ = f.Write([]byte(content))
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// tokenDialect is that of engines that take token ids, spoken to by gRPC.
type tokenDialect struct {
	engine.VLLM
	mu *sync.Mutex
	// by the address of the engine, guarded by mu
	bundles map[string][]byte
	fails   map[string]error
	asks    map[string]int
	// digest, if not empty, is told in place of the right one.
	digest string
}

func newTokenDialect() *tokenDialect {
	return &tokenDialect{mu: &sync.Mutex{}, bundles: map[string][]byte{}, fails: map[string]error{}, asks: map[string]int{}}
}

func (*tokenDialect) Name() string              { return "tokens" }
func (*tokenDialect) Speaks(scheme string) bool { return strings.HasPrefix(scheme, "grpc") }
func (*tokenDialect) TakesTokens() bool         { return true }
func (*tokenDialect) Connectors() *engine.Connectors {
	return nil
}

func (d *tokenDialect) Bundle(_ context.Context, to *upstream.Endpoint, _ int) ([]byte, string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	url := to.Base().String()
	d.asks[url]++
	if err := d.fails[url]; err != nil {
		return nil, "", err
	}
	b := d.bundles[url]
	if b == nil {
		return nil, "", errors.ErrUnsupported
	}
	sum := sha256.Sum256(b)
	digest := hex.EncodeToString(sum[:])
	if d.digest != "" {
		digest = d.digest
	}
	return b, digest, nil
}

func (d *tokenDialect) Tokenize(ctx context.Context, _ *upstream.Endpoint, _ string) ([]uint32, error) {
	return nil, errors.New("not asked in these tests")
}

func (d *tokenDialect) set(url string, bundle []byte, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bundles[url], d.fails[url] = bundle, err
}

func (d *tokenDialect) asked(url string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asks[url]
}

const (
	grpcA, grpcB, grpcC = "grpc://10.0.0.1:50051", "grpc://10.0.0.2:50051", "grpc://10.0.0.3:50051"
	httpA               = "http://10.0.1.1:8000"
)

// tokenFleet runs a test with engines that take tokens. paths are as tokenizer_path.
func tokenFleet(t *testing.T, paths []config.TokenizerPath, f func(b *testbed, d *tokenDialect)) {
	d := newTokenDialect()
	s := settings{dialects: engine.NewRegistry(engine.SGLang{}, engine.VLLM{}, d), config: func(c *config.Config) { c.Text.TokenizerPaths = paths }}
	inBubble(t, s, func(b *testbed) { f(b, d) })
}

func (b *testbed) up(models *Facts, urls ...string) (ws []*Worker) {
	for _, u := range urls {
		b.prober.set(well, u)
		b.prober.says(u, models)
		ws = append(ws, b.add(WorkerSpec{URL: u}))
	}
	return ws
}

// A worker that takes token ids gets requests when the files of its tokenizer were read, and
// not before. Workers with the same files share them, although their archives differ.
func TestTextOfAPoolIsThatOfItsEngine(t *testing.T) {
	tokenFleet(t, nil, func(b *testbed, d *tokenDialect) {
		d.set(grpcA, nil, errors.New("not yet"))
		ws := b.up(serves("m"), grpcA)
		b.pass(500 * time.Millisecond)
		b.wantCandidates()
		if p := b.Text("m"); p.Model != nil || !p.TakesTokens || p.Err == nil || p.Loading {
			t.Errorf("text of a worker without one: %+v", p)
		}
		if i := ws[0].Info(); i.Status != StatusPending || !strings.Contains(i.Reason, "not yet") || i.Tokenizer.State != textFailed {
			t.Errorf("worker without a tokenizer: %s, %q, %+v", i.Status, i.Reason, i.Tokenizer)
		} else if !strings.Contains(i.Reason, "set tokenizer_path") {
			t.Errorf("what to do is not told: %q", i.Reason)
		}
		d.set(grpcA, zipOf(tinyFiles(false), time.Unix(1e9, 0)), nil)
		b.pass(5 * time.Second)
		b.wantCandidates(grpcA)
		p := b.Text("m")
		if p.Model == nil || p.Err != nil || p.Context != 512 {
			t.Fatalf("text: %+v", p)
		}
		if n := p.Model.VocabSize(); n != 26 {
			t.Errorf("%d tokens, want 26", n)
		}

		d.set(grpcB, zipOf(tinyFiles(false), time.Unix(2e9, 0)), nil)
		b.up(serves("m"), grpcB)
		b.pass(5 * time.Second)
		b.wantCandidates(grpcA, grpcB)
		if s := b.texts.store.Stats(); s.Models != 1 {
			t.Errorf("%d copies of the same files", s.Models)
		}
		if n := d.asked(grpcA) + d.asked(grpcB); n > 4 {
			t.Errorf("the engines were asked %d times", n)
		}
		b.Remove(grpcA)
		b.Remove(grpcB)
		b.pass(time.Minute)
		if s := b.texts.store.Stats(); s.Models != 0 || s.Bytes != 0 {
			t.Errorf("after the last worker the store holds %+v", s)
		}
		if p := b.Text("m"); p != (PoolText{}) {
			t.Errorf("text of no worker: %+v", p)
		}
	})
}

func TestBadBundlesKeepAWorkerOut(t *testing.T) {
	files := tinyFiles(false)
	for name, set := range map[string]func(d *tokenDialect){
		"not a zip": func(d *tokenDialect) { d.set(grpcA, []byte("PK nonsense"), nil) },
		"wrong digest": func(d *tokenDialect) {
			d.set(grpcA, zipOf(files, time.Unix(1, 0)), nil)
			d.digest = strings.Repeat("0", 64)
		},
		"no tokenizer": func(d *tokenDialect) {
			d.set(grpcA, zipOf(map[string]string{"config.json": "{}"}, time.Unix(1, 0)), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			tokenFleet(t, nil, func(b *testbed, d *tokenDialect) {
				set(d)
				w := b.up(serves("m"), grpcA)[0]
				b.pass(10 * time.Minute)
				b.wantCandidates()
				if i := w.Info(); i.Reason == "" || i.Status != StatusPending || len(i.Warnings) == 0 {
					t.Errorf("info: %s, %q, %q", i.Status, i.Reason, i.Warnings)
				}
				if n := d.asked(grpcA); n < 4 || n > 30 {
					t.Errorf("it was asked %d times in 10 minutes", n)
				}
				// Mended by a restart of the engine, it serves.
				d.digest = ""
				d.set(grpcA, zipOf(files, time.Unix(1, 0)), nil)
				b.pass(2 * time.Minute)
				b.wantCandidates(grpcA)
			})
		})
	}
}

// Another engine process at the address may have another tokenizer: it is read again, and no
// request goes there meanwhile.
func TestTextIsReadAgainOfAnotherEngine(t *testing.T) {
	tokenFleet(t, nil, func(b *testbed, d *tokenDialect) {
		d.set(grpcA, zipOf(tinyFiles(false), time.Unix(1, 0)), nil)
		facts := serves("m")
		facts.Fingerprint = 1
		b.up(facts, grpcA)
		b.pass(5 * time.Second)
		before := b.Text("m").Model
		if before == nil {
			t.Fatal("no text")
		}
		d.set(grpcA, zipOf(tinyFiles(true), time.Unix(1, 0)), nil)
		other := serves("m")
		other.Fingerprint = 2
		b.prober.says(grpcA, other)
		b.pass(time.Minute)
		after := b.Text("m").Model
		if after == nil || after.Digest() == before.Digest() {
			t.Error("the text is that of the engine before")
		}
		b.wantCandidates(grpcA)
	})
}

// Of a model whose workers have other tokenizers, those get requests that had them first.
func TestWorkersOfOneModelHaveOneTokenizer(t *testing.T) {
	tokenFleet(t, nil, func(b *testbed, d *tokenDialect) {
		d.set(grpcA, zipOf(tinyFiles(false), time.Unix(1, 0)), nil)
		d.set(grpcB, zipOf(tinyFiles(true), time.Unix(1, 0)), nil)
		d.set(grpcC, zipOf(tinyFiles(true), time.Unix(1, 0)), nil)
		b.up(serves("m"), grpcA)
		b.pass(5 * time.Second)
		w := b.up(serves("m"), grpcB)[0]
		b.pass(5 * time.Second)
		b.wantCandidates(grpcA)
		if i := w.Info(); !strings.Contains(i.Reason, grpcA) || i.Status != StatusPending {
			t.Errorf("info: %s, %q", i.Status, i.Reason)
		}
		first := b.Text("m").Model.Digest()
		b.up(serves("other"), grpcC) // another model: no matter
		b.pass(5 * time.Second)
		b.wantCandidates(grpcA, grpcC)
		b.Remove(grpcA)
		b.pass(time.Second)
		b.wantCandidates(grpcB, grpcC)
		if b.Text("m").Model.Digest() == first {
			t.Error("the text is that of the worker that went")
		}
	})
}

// The workers of a model are all reached by HTTP, or all by gRPC; a fleet may have both.
func TestWorkersOfOneModelAreOfOneKind(t *testing.T) {
	tokenFleet(t, nil, func(b *testbed, d *tokenDialect) {
		for _, u := range []string{grpcA, grpcB} {
			d.set(u, zipOf(tinyFiles(false), time.Unix(1, 0)), nil)
		}
		b.up(serves("m"), httpA)
		b.pass(5 * time.Second)
		b.up(serves("m"), grpcA)
		b.up(serves("n"), grpcB)
		b.pass(5 * time.Second)
		b.wantCandidates(grpcB, httpA)
		if p := b.Text("m"); p.TakesTokens {
			t.Error("the text of a pool by HTTP is said to take tokens")
		}
		// The first dies: the other kind takes over, and keeps the model when it is back.
		b.prober.set(vanished, httpA)
		b.pass(2 * time.Minute)
		b.wantCandidates(grpcA, grpcB)
		b.prober.set(well, httpA)
		b.pass(2 * time.Minute)
		b.wantCandidates(grpcA, grpcB)
		b.prober.set(vanished, grpcA)
		b.pass(2 * time.Minute)
		b.wantCandidates(grpcB, httpA)
		b.prober.set(vanished, httpA)
		b.prober.set(well, grpcA)
		b.pass(2 * time.Minute)
		b.wantCandidates(grpcA, grpcB)
		w := b.up(serves("m"), "http://10.0.1.2:8000")[0]
		b.pass(5 * time.Second)
		b.wantCandidates(grpcA, grpcB)
		if i := w.Info(); !strings.Contains(i.Reason, "by HTTP") || !strings.Contains(i.Reason, grpcA) {
			t.Errorf("reason %q", i.Reason)
		}
	})
}

// Configured files go before the engine's, and make text of workers by HTTP known.
func TestConfiguredFilesOfATokenizer(t *testing.T) {
	dir := t.TempDir()
	for name, content := range tinyFiles(false) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	paths := []config.TokenizerPath{config.TokenizerPath("m=" + dir), config.TokenizerPath("n=" + dir), config.TokenizerPath("bad=" + dir + "/nothing")}
	tokenFleet(t, paths, func(b *testbed, d *tokenDialect) {
		b.up(serves("m"), grpcA)
		b.up(serves("n"), httpA)
		bad := b.up(serves("bad"), grpcB)[0]
		b.up(serves("else"), grpcC)
		b.pass(5 * time.Second)
		m, n := b.Text("m"), b.Text("n")
		if m.Model == nil || m.Model != n.Model || !m.TakesTokens || n.TakesTokens {
			t.Errorf("texts: %+v, %+v", m, n)
		}
		if p := b.Text("bad"); p.Model != nil || p.Err == nil || p.Loading {
			t.Errorf("text of a path that is not there: %+v", p)
		}
		if i := bad.Info(); !strings.Contains(i.Reason, "the files of tokenizer_path cannot be used") {
			t.Errorf("the reason does not name the option: %q", i.Reason)
		}
		// Without files it serves what needs none.
		if p := b.Text("else"); p.Model != nil || !errors.Is(p.Err, errNoText) || !p.TakesTokens || !p.IDsOnly {
			t.Errorf("text without files: %+v", p)
		}
		b.wantCandidates(grpcA, grpcC, httpA)
		if d.asked(grpcA)+d.asked(grpcB) > 0 {
			t.Error("engines were asked for their files although a path is set")
		}
	})
}

// A worker whose tokenizer is of an unknown kind serves what needs none, and is not asked for
// the files again. The files are known all the same: workers with others are kept apart.
func TestATokenizerOfAnUnknownKind(t *testing.T) {
	tokenFleet(t, nil, func(b *testbed, d *tokenDialect) {
		unknown := map[string]string{"tokenizer.json": `{"model":{"type":"Unigram","unk_id":0,"vocab":[["a",0]]}}`}
		d.set(grpcA, zipOf(unknown, time.Unix(1, 0)), nil)
		d.set(grpcB, zipOf(tinyFiles(false), time.Unix(1, 0)), nil)
		w := b.up(serves("m"), grpcA)[0]
		b.pass(time.Second)
		b.wantCandidates(grpcA)
		if p := b.Text("m"); p.Model != nil || !p.IDsOnly || !strings.Contains(p.Err.Error(), "Unigram") {
			t.Errorf("text: %+v", p)
		}
		if i := w.Info(); i.Status != StatusReady || !strings.Contains(strings.Join(i.Warnings, "; "), "answered with token ids") {
			t.Errorf("%s, %q", i.Status, i.Warnings)
		}
		other := b.up(serves("m"), grpcB)[0]
		b.pass(5 * time.Minute)
		if n := d.asked(grpcA); n != 1 {
			t.Errorf("the files were asked for %d times", n)
		}
		b.wantCandidates(grpcA)
		if i := other.Info(); i.Status != StatusPending || !strings.Contains(i.Reason, "not those of") {
			t.Errorf("%s, %q", i.Status, i.Reason)
		}
		// Another engine at the address has the files of the other worker.
		d.set(grpcA, zipOf(tinyFiles(false), time.Unix(1, 0)), nil)
		facts := serves("m")
		facts.Fingerprint = 2
		b.prober.says(grpcA, facts)
		b.pass(time.Minute)
		b.wantCandidates(grpcA, grpcB)
	})
}

// What comes of comparing an engine's tokens with those of its files.
func TestSelfCheckOfATokenizer(t *testing.T) {
	other := &textmodel.Mismatch{Probe: "a", Own: []uint32{0}, Theirs: []uint32{1}, Reads: true}
	unread := &textmodel.Mismatch{Probe: "a", Own: []uint32{0}, Theirs: []uint32{1}}
	for name, c := range map[string]struct {
		err   error
		state string
		warns string
	}{
		"same":             {nil, textChecked, ""},
		"other":            {other, textMismatch, "are refused"},
		"other vocabulary": {unread, textMismatch, "return_token_ids"},
		"no reply":         {errors.New("it is busy"), textUnchecked, "it is busy"},
	} {
		t.Run(name, func(t *testing.T) {
			tokenFleet(t, nil, func(b *testbed, d *tokenDialect) {
				b.texts.selfCheck = func(context.Context, *textmodel.Model, textmodel.Asker) error { return c.err }
				d.set(grpcA, zipOf(tinyFiles(false), time.Unix(1, 0)), nil)
				w := b.up(serves("m"), grpcA)[0]
				b.pass(time.Second)
				b.wantCandidates(grpcA)
				i := w.Info()
				if i.Tokenizer.State != c.state || !strings.Contains(strings.Join(i.Warnings, "; "), c.warns) {
					t.Errorf("state %q, warnings %q", i.Tokenizer.State, i.Warnings)
				}
				p := b.Text("m")
				if c.err == error(unread) { // its tokens would be read as a guess
					if p.Model != nil || !p.IDsOnly || !errors.Is(p.Err, unread) || !errors.Is(p.Mismatch, unread) {
						t.Errorf("text: %+v", p)
					}
					return
				}
				if p.Model == nil || (p.Mismatch != nil) != (c.state == textMismatch) {
					t.Fatalf("text: %+v", p)
				}
				if refused := p.Model.ChatRefusal(); c.state == textMismatch && !errors.Is(refused, other) {
					t.Errorf("chat is refused for %v", refused)
				}
			})
		})
	}
}

// A worker whose engine takes long to answer the self-check does not wait for it for ever,
// and one with files that were checked at another does not wait at all.
func TestSelfCheckDoesNotKeepWorkersOutForLong(t *testing.T) {
	tokenFleet(t, nil, func(b *testbed, d *tokenDialect) {
		took := time.Minute
		b.texts.selfCheck = func(ctx context.Context, _ *textmodel.Model, _ textmodel.Asker) error {
			select {
			case <-time.After(took):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		d.set(grpcA, zipOf(tinyFiles(false), time.Unix(1, 0)), nil)
		d.set(grpcB, zipOf(tinyFiles(false), time.Unix(1, 0)), nil)
		w := b.up(serves("m"), grpcA)[0]
		b.pass(checkPatience - time.Second)
		b.wantCandidates()
		if i := w.Info(); i.Status != StatusPending || i.Reason == "" {
			t.Errorf("%s, %q", i.Status, i.Reason)
		}
		b.pass(2 * time.Second)
		b.wantCandidates(grpcA)
		b.pass(took)
		if s := w.Info().Tokenizer.State; s != textChecked {
			t.Errorf("state %q", s)
		}
		b.up(serves("m"), grpcB)
		b.pass(time.Second)
		b.wantCandidates(grpcA, grpcB)
	})
}

// What an engine tells of its model is known with its text, and new when the engine is.
func TestWhatAnEngineTellsOfItsModel(t *testing.T) {
	tokenFleet(t, nil, func(b *testbed, d *tokenDialect) {
		d.set(grpcA, zipOf(tinyFiles(false), time.Unix(1e9, 0)), nil)
		told := func(sampling string, started float64) *Facts {
			facts := serves("m")
			facts.started = started
			facts.Tokens = &engine.TokenFacts{Vocab: 40, EOS: []uint32{7}, Sampling: sampling}
			return facts
		}
		b.up(told(`{"temperature": 0.5}`, 1), grpcA)
		b.pass(5 * time.Second)
		b.wantCandidates(grpcA)
		e := b.Text("m").Engine
		if e == nil || e.Vocab != 40 || len(e.EOS) != 1 || e.Sampling == nil || *e.Sampling.Temperature != 0.5 {
			t.Fatalf("the engine's own: %+v", e)
		}
		b.prober.says(grpcA, told(`{"temperature": 0.25}`, 2))
		b.pass(factsInterval + 2*time.Minute) // its facts are read, at the check that follows
		if e := b.Text("m").Engine; e == nil || *e.Sampling.Temperature != 0.25 {
			t.Errorf("after another engine came: %+v", e)
		}
	})
}

// An engine that does not tell its processes apart may be another one when connections to it
// were lost. What is known of its text is used until it was read again.
func TestTextIsReadAgainAfterConnectionsWereLost(t *testing.T) {
	tokenFleet(t, nil, func(b *testbed, d *tokenDialect) {
		d.set(grpcA, zipOf(tinyFiles(false), time.Unix(1, 0)), nil)
		b.up(serves("m"), grpcA)
		b.pass(5 * time.Second)
		before, asked := b.Text("m").Model, d.asked(grpcA)
		b.pass(time.Minute)
		if n := d.asked(grpcA); n != asked {
			t.Errorf("it was asked %d times more without a reason", n-asked)
		}
		b.prober.loses(grpcA)
		b.pass(time.Minute)
		if b.Text("m").Model != before || d.asked(grpcA) != asked+1 {
			t.Errorf("the same files: asked %d times", d.asked(grpcA)-asked)
		}
		d.set(grpcA, nil, errors.New("not now"))
		b.prober.loses(grpcA)
		b.pass(20 * time.Second)
		b.wantCandidates(grpcA)
		if b.Text("m").Model != before {
			t.Error("what was known is not used on")
		}
		d.set(grpcA, zipOf(tinyFiles(true), time.Unix(1, 0)), nil)
		b.pass(2 * time.Minute)
		b.wantCandidates(grpcA)
		if m := b.Text("m").Model; m == nil || m.Digest() == before.Digest() {
			t.Error("the text is that of the engine before")
		}
		if s := b.texts.store.Stats(); s.Models != 1 {
			t.Errorf("the store holds %+v", s)
		}
	})
}

// What follows from a mismatch depends on what is set, and so does what to do.
func TestWhatAMismatchMeans(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		cfg  config.Text
		want string
	}{
		{config.Text{}, "chat and prompts that are text are refused for its model; prompts that are token ids are served"},
		{config.Text{RendererURL: "http://r:1"}, "chats of its model go to renderer_url, and prompts that are text are refused; prompts that are token ids are served"},
		{config.Text{TokenizerPaths: []config.TokenizerPath{config.TokenizerPath(dir)}}, "chat and prompts that are text are refused for its model; prompts that are token ids are served; are the files of tokenizer_path those of the engine's model?"},
	} {
		w := &Worker{fleet: &Fleet{cfg: &config.Config{Text: c.cfg}, opts: Options{Dialects: dialects.All()}}}
		w.spec.Store(&WorkerSpec{})
		w.updateState(noFacts)
		if got := w.mismatchMeansLocked(); got != c.want {
			t.Errorf("%+v: %q", c.cfg, got)
		}
	}
}
