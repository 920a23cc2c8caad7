package tokenizer

import (
	"bytes"
	"cmp"
	"context"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unsafe"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-router/sluice/internal/text"
)

// The largest tokenizer that is accepted. The file comes from an engine, which is not
// trusted; the largest real ones known (Gemma 3) have 33 MB, 262,000 tokens, 515,000
// merges and 6,400 added tokens.
const (
	maxFileBytes   = 128 << 20
	maxTokenID     = 1<<21 - 1 // so that a pair of ids fits into one word
	maxMerges      = 1<<21 - 1
	maxTokenBytes  = 1 << 14
	maxAddedTokens = 1 << 16
	maxAddedFile   = 32 << 20 // bytes of the section "added_tokens"
	// maxSectionBytes is for each of the other sections but the model. The largest known
	// is a table of 316 KB (of a normalizer that is not supported).
	maxSectionBytes = 1 << 20
	maxSteps        = 64 // normalizers, pre-tokenizers or processors in one sequence
	maxPatterns     = 16 // regular expressions in one section
	maxGaps         = 4  // ids for each token of the vocabulary, beside maxFreeGaps
	maxFreeGaps     = 1 << 12
)

// UnsupportedError tells that a tokenizer.json is of a kind that this package does not
// know. Texts cannot be encoded for the model here.
type UnsupportedError struct {
	Part string // of the file, such as "model" or "pre_tokenizer"
	What string // that was found there
}

// Error returns the part of the file and what it has there.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("tokenizer.json: %s: %s is not supported", e.Part, e.What)
}

func unsupported(part, format string, args ...any) error {
	return &UnsupportedError{Part: part, What: text.Clip(fmt.Sprintf(format, args...), 200)}
}

// file is a tokenizer.json. Sections are parts of the data that was read.
type file struct {
	version *string

	addedTokens, normalizer, preTokenizer, postProcessor, decoder, model jsontext.Value
}

// addedToken is an element of "added_tokens".
type addedToken struct {
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// modelFile is the section "model".
type modelFile struct {
	kind         *string
	dropout      *float64
	unkToken     *string
	prefix       *string
	suffix       *string
	fuseUnk      bool
	byteFallback bool
	ignoreMerges bool

	vocab, merges jsontext.Value
}

// fileOptions are how the reference reads JSON: of names given twice the last one counts.
var fileOptions = jsontext.AllowDuplicateNames(true)

// members calls f with the members of a JSON object. The values are parts of data: the
// largest are as large as the file, so they are not copied.
func members(data []byte, f func(name string, value jsontext.Value) error) error {
	dec := jsontext.NewDecoder(bytes.NewBuffer(data), fileOptions)
	if open, err := dec.ReadToken(); err != nil || open.Kind() != '{' {
		return cmp.Or(err, errors.New("it is no object"))
	}
	for {
		name, err := dec.ReadToken()
		if err != nil {
			return err
		}
		if name.Kind() == '}' {
			break
		}
		member := name.String()
		value, err := dec.ReadValue()
		if err != nil {
			return err
		}
		end := dec.InputOffset()
		if err := f(member, jsontext.Value(data[end-int64(len(value)):end])); err != nil {
			return err
		}
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return cmp.Or(err, errors.New("something stands behind the object"))
	}
	return nil
}

func (f *file) read(data []byte) error {
	return members(data, func(name string, value jsontext.Value) error {
		switch name {
		case "version":
			return json.Unmarshal(value, &f.version, fileOptions)
		case "added_tokens":
			f.addedTokens = value
		case "normalizer":
			f.normalizer = value
		case "pre_tokenizer":
			f.preTokenizer = value
		case "post_processor":
			f.postProcessor = value
		case "decoder":
			f.decoder = value
		case "model":
			f.model = value
		}
		return nil
	})
}

func (m *modelFile) read(data []byte) error {
	return members(data, func(name string, value jsontext.Value) error {
		var field any
		switch name {
		case "vocab":
			m.vocab = value
			return nil
		case "merges":
			m.merges = value
			return nil
		case "type":
			field = &m.kind
		case "dropout":
			field = &m.dropout
		case "unk_token":
			field = &m.unkToken
		case "continuing_subword_prefix":
			field = &m.prefix
		case "end_of_word_suffix":
			field = &m.suffix
		case "fuse_unk":
			field = &m.fuseUnk
		case "byte_fallback":
			field = &m.byteFallback
		case "ignore_merges":
			field = &m.ignoreMerges
		default:
			return nil
		}
		return json.Unmarshal(value, field, fileOptions)
	})
}

// Parse reads a tokenizer.json. What it does not know is an *UnsupportedError; other errors
// tell that the file is broken or too large. The data is not kept.
func Parse(tokenizerJSON []byte) (*Tokenizer, error) {
	if len(tokenizerJSON) > maxFileBytes {
		return nil, fmt.Errorf("tokenizer.json has %d bytes, more than %d", len(tokenizerJSON), maxFileBytes)
	}
	var f file
	if err := f.read(tokenizerJSON); err != nil {
		return nil, fmt.Errorf("cannot read tokenizer.json: %w", err)
	}
	if len(f.model) == 0 {
		return nil, errors.New("tokenizer.json has no model")
	}
	var m modelFile
	if err := m.read(f.model); err != nil {
		return nil, fmt.Errorf("cannot read the model of tokenizer.json: %w", err)
	}
	switch {
	case f.version != nil && *f.version != "1.0":
		return nil, unsupported("version", "%q", *f.version)
	case m.kind != nil && *m.kind != "BPE":
		return nil, unsupported("model", "type %s", strconv.Quote(*m.kind))
	case m.dropout != nil && *m.dropout != 0:
		return nil, unsupported("model", "dropout")
	}
	if err := f.checkSizes(); err != nil {
		return nil, err
	}
	t := &Tokenizer{longest: 1}
	if err := t.readVocabulary(m.vocab); err != nil {
		return nil, err
	}
	if err := t.buildModel(&m); err != nil {
		return nil, err
	}
	if err := t.parseSteps(&f); err != nil {
		return nil, err
	}
	if err := t.addTokens(f.addedTokens); err != nil {
		return nil, err
	}
	var err error
	if t.post, err = parsePostProcessor(f.postProcessor, len(t.tokens)); err != nil {
		return nil, err
	}
	if present(f.decoder) {
		t.decoder = stdjson.RawMessage(bytes.Clone(f.decoder))
	}
	t.readMark(f.preTokenizer)
	if err := t.parseDecoder(); err != nil {
		return nil, err
	}
	t.memory = t.size()
	return t, nil
}

// checkSizes bounds the sections that are read more than once, or into much larger values.
func (f *file) checkSizes() error {
	for name, v := range map[string]jsontext.Value{
		"normalizer": f.normalizer, "pre_tokenizer": f.preTokenizer, "post_processor": f.postProcessor, "decoder": f.decoder,
	} {
		if len(v) > maxSectionBytes {
			return unsupported(name, "a section of %d bytes, more than %d,", len(v), maxSectionBytes)
		}
	}
	if len(f.addedTokens) > maxAddedFile {
		return unsupported("added_tokens", "a section of %d bytes, more than %d,", len(f.addedTokens), maxAddedFile)
	}
	return nil
}

// present reports whether a section of the file is there and not null.
func present(v jsontext.Value) bool { return len(v) > 0 && v.Kind() != 'n' }

// readVocabulary reads the section "vocab" of the model: token texts with their ids.
func (t *Tokenizer) readVocabulary(v jsontext.Value) error {
	if v.Kind() != '{' {
		return errors.New("tokenizer.json: the model has no vocabulary")
	}
	// One pass for the number of tokens and the length of their texts, so that all texts
	// are pieces of one string.
	type entry struct {
		start, end int
		id         uint32
	}
	var entries []entry
	var texts []byte
	top := uint32(0)
	dec := jsontext.NewDecoder(bytes.NewBuffer(v), fileOptions)
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadValue()
		if err != nil {
			return fmt.Errorf("tokenizer.json: the vocabulary: %w", err)
		}
		start := len(texts)
		if texts, err = jsontext.AppendUnquote(texts, name); err != nil {
			return fmt.Errorf("tokenizer.json: the vocabulary: %w", err)
		}
		if len(texts)-start > maxTokenBytes {
			return fmt.Errorf("tokenizer.json has a token of %d bytes, more than %d", len(texts)-start, maxTokenBytes)
		}
		number, err := dec.ReadValue()
		if err != nil {
			return fmt.Errorf("tokenizer.json: the vocabulary: %w", err)
		}
		id, err := strconv.ParseUint(string(number), 10, 32)
		if err != nil || id > maxTokenID {
			return fmt.Errorf("tokenizer.json: id %s of a token is not a number below %d", text.Clip(string(number), 40), maxTokenID+1)
		}
		if len(entries) > maxTokenID {
			return fmt.Errorf("tokenizer.json has more than %d tokens", maxTokenID+1)
		}
		top = max(top, uint32(id))
		entries = append(entries, entry{start: start, end: len(texts), id: uint32(id)})
	}
	arena := string(texts)
	if int(top) > maxGaps*len(entries)+maxFreeGaps {
		// Memory is taken for each id, so that a short file would take as much as a long one.
		return unsupported("model", "a vocabulary of %d tokens with the id %d", len(entries), top)
	}
	if len(entries) > 0 {
		t.tokens = make([]token, top+1)
	}
	taken := make([]bool, len(t.tokens))
	t.vocab = newTextIndex(len(entries), func(id uint32) string { return t.tokens[id].text })
	for i := len(entries) - 1; i >= 0; i-- { // of a text given twice the last one counts
		e := entries[i]
		s := arena[e.start:e.end]
		if _, twice := t.vocab.find(s); twice {
			continue
		}
		if taken[e.id] {
			return unsupported("model", "a vocabulary in which id %d is of two tokens", e.id)
		}
		taken[e.id] = true
		t.tokens[e.id] = token{text: s}
		t.longest = max(t.longest, len(s))
		t.vocab.add(s, e.id)
		t.vocabulary++
	}
	return nil
}

// parseSteps reads the normalizer and the pre-tokenizer. Where the last step writes bytes
// as characters and the model has a token for each, both take the bytes as they are.
func (t *Tokenizer) parseSteps(f *file) (err error) {
	if t.normal, err = parseNormalizer(f.normalizer, nil, 0); err != nil {
		return err
	}
	if t.pre, err = parsePreTokenizer(f.preTokenizer, nil, 0); err != nil {
		return err
	}
	if n := len(t.pre); n > 0 {
		if last, ok := t.pre[n-1].(byteLevel); ok && t.useBytes() {
			last.plain = true
			t.pre[n-1] = last
		}
	}
	return nil
}

// readAddedTokens reads the section "added_tokens".
func readAddedTokens(v jsontext.Value) (list []addedToken, err error) {
	if !present(v) {
		return nil, nil
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(v), fileOptions)
	if open, err := dec.ReadToken(); err != nil || open.Kind() != '[' {
		return nil, brokenSection("added_tokens", cmp.Or(err, errors.New("it is no list")))
	}
	for dec.PeekKind() != ']' {
		if len(list) == maxAddedTokens {
			return nil, fmt.Errorf("tokenizer.json has more than %d added tokens", maxAddedTokens)
		}
		var a addedToken
		if err := json.UnmarshalDecode(dec, &a); err != nil {
			return nil, brokenSection("added_tokens", err)
		}
		list = append(list, a)
	}
	return list, nil
}

// addTokens adds the section "added_tokens". Ids are given as the reference gives them: a
// token of the vocabulary keeps its id there, another one gets the next free one after
// the vocabulary. The ids in the file are not read, in files that tools wrote they are
// the same. Of a text given twice the last one counts.
func (t *Tokenizer) addTokens(section jsontext.Value) error {
	list, err := readAddedTokens(section)
	if err != nil {
		return err
	}
	t.added = make(map[string]uint32, len(list))
	next := uint32(t.vocabulary)
	total := 0
	rules := make(map[uint32]*addedToken, len(list))
	for i, a := range list {
		if a.Content == "" {
			continue
		}
		if total += len(a.Content); len(a.Content) > maxAddedBytes || total > maxAddedTotalBytes {
			return fmt.Errorf("tokenizer.json has added tokens of %d bytes and more, the limit is %d for one and %d for all", len(a.Content), maxAddedBytes, maxAddedTotalBytes)
		}
		id, known := t.TokenID(a.Content)
		if !known {
			id = next
		}
		next = max(next, id+1)
		if n := int(id) + 1; n > len(t.tokens) {
			t.tokens = append(t.tokens, make([]token, n-len(t.tokens))...)
		}
		if t.tokens[id].text != "" && t.tokens[id].text != a.Content {
			return unsupported("added_tokens", "id %d for both %q and %q", id, t.tokens[id].text, a.Content)
		}
		t.tokens[id] = token{text: a.Content, special: a.Special, added: true}
		t.added[a.Content] = id
		rules[id] = &list[i]
	}
	return t.makeFinders(list, rules)
}

// makeFinders makes what finds added tokens in texts. rules has by id those that count.
func (t *Tokenizer) makeFinders(list []addedToken, rules map[uint32]*addedToken) error {
	var inText, inNormal []addedRule
	e := newEncoder(t)
	e.begin(context.Background(), nil, maxAddedBytes)
	e.work = maxAddedWork
	total := 0
	for i := range list {
		a := &list[i]
		id := t.added[a.Content]
		if rules[id] != a {
			continue // given again further down
		}
		rule := addedRule{text: a.Content, id: id, singleWord: a.SingleWord, lstrip: a.LStrip, rstrip: a.RStrip}
		if !a.Normalized {
			inText = append(inText, rule)
			continue
		}
		rule.text = strings.Clone(e.normalize(rule.text))
		if e.err != nil || len(rule.text) > maxAddedBytes {
			return unsupported("added_tokens", "%q, which the normalizer makes too long,", a.Content)
		}
		if rule.text == "" {
			return unsupported("added_tokens", "%q, of which the normalizer leaves nothing,", a.Content)
		}
		if total += len(rule.text); total > maxAddedTotalBytes {
			return unsupported("added_tokens", "%d bytes of them, to which the normalizer makes them,", total)
		}
		inNormal = append(inNormal, rule)
	}
	t.inText, t.inNormal = newFinder(inText), newFinder(inNormal)
	// The scheme "first" asks where in the original text a word begins, of which no account
	// is kept here but that a segment is at the beginning.
	moved := len(t.normal) > 0
	for i, p := range t.pre {
		if m, ok := p.(metaspace); ok && m.first && moved && (i > 0 || t.inNormal != nil) {
			return unsupported("pre_tokenizer", "a prefix for the first word alone, behind other steps,")
		}
		_, cuts := p.(split)
		moved = moved || !cuts
	}
	return nil
}

// size adds up what the tokenizer holds.
func (t *Tokenizer) size() int64 {
	n := int64(len(t.tokens))*int64(unsafe.Sizeof(token{})) + t.vocab.bytes() + int64(len(t.decoder)) + t.text.memory()
	for i := range t.tokens {
		n += int64(len(t.tokens[i].text))
	}
	for _, step := range t.normal {
		if r, ok := step.(replace); ok {
			n += r.of.bytes() + int64(len(r.with))
		}
	}
	for _, p := range t.pre {
		switch p := p.(type) {
		case split:
			n += p.of.bytes()
		case byteLevel:
			if p.words.of != nil {
				n += p.words.bytes()
			}
		}
	}
	return n + 64*int64(len(t.added)) + t.model.bytes() + t.inText.bytes() + t.inNormal.bytes()
}
