package cindercontract

import (
	"slices"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// readings check answers, which a table of states cannot express.
var readings = map[string]func(*subject){
	"a create is answered before it is done": func(s *subject) {
		made := s.create(s.Type)
		if made.Status != cinder.StatusCreating {
			s.t.Errorf("the new volume has status %s", made.Status)
		}
		v, _ := s.settled()
		if v.ID != made.ID || v.Name != made.Name || v.SizeGiB != 1 || v.Type != s.Type || v.Metadata["purpose"] != "contract" || v.CreatedAt.IsZero() {
			s.t.Errorf("created volume %+v, later read %+v", made, v)
		}
		if off := v.CreatedAt.Sub(s.Cinder.Now()).Abs(); off > time.Minute {
			s.t.Errorf("its creation time is %s from now by Cinder's clock", off)
		}
	},
	"a new volume is listed, and a filter hides it": func(s *subject) {
		s.create(s.Type)
		if !s.isListed(cinder.Query{PageSize: 1000}) {
			s.t.Error("the volume is missing in the list of all")
		}
		if s.isListed(cinder.Query{Status: cinder.StatusDeleting, PageSize: 1000}) {
			s.t.Error("the volume is in the list of those in deletion")
		}
	},
	"a page of one is followed by others": func(s *subject) {
		s.create(s.Type)
		if !s.isListed(cinder.Query{PageSize: 1}) {
			s.t.Error("the volume is missing in the list read in pages of one")
		}
	},
	"a listing ends when it is told to": func(s *subject) {
		s.create(s.Type)
		pages := 0
		s.must(s.Cinder.ListVolumes(s.ctx, cinder.Query{PageSize: 1}, func([]cinder.Volume) bool {
			pages++
			return false
		}))
		if pages != 1 {
			s.t.Errorf("%d pages were read", pages)
		}
	},
	"metadata that is written stays beside the rest": func(s *subject) {
		s.create(s.Type)
		s.must(s.Cinder.UpdateMetadata(s.ctx, s.id, map[string]string{"a": "b"}))
		v, _ := s.settled()
		if v.Metadata["a"] != "b" || v.Metadata["purpose"] != "contract" {
			s.t.Errorf("the metadata is %v", v.Metadata)
		}
	},
	"an attachment keeps its connection": func(s *subject) {
		s.create(s.Type)
		s.connect()
		document, err := s.Cinder.AttachmentDocument(s.ctx, s.attachment)
		s.must(err)
		s.isDocument(document)
		s.must(s.Cinder.CompleteAttachment(s.ctx, s.attachment))
		document, err = s.Cinder.AttachmentDocument(s.ctx, s.attachment)
		s.must(err)
		s.isDocument(document)
		s.must(s.Cinder.DeleteAttachment(s.ctx, s.attachment))
		if _, err = s.Cinder.AttachmentDocument(s.ctx, s.attachment); !cinder.IsKind(err, cinder.KindNotFound) {
			s.t.Errorf("after its deletion the error is %v", err)
		}
	},
	"metadata that is emptied stays empty": func(s *subject) {
		s.create(s.Type)
		s.must(s.Cinder.UpdateMetadata(s.ctx, s.id, map[string]string{"a/b.c": "d"}))
		s.must(s.Cinder.UpdateMetadata(s.ctx, s.id, map[string]string{"a/b.c": ""}))
		if v, _ := s.settled(); v.Metadata["a/b.c"] != "" || v.Metadata["purpose"] != "contract" {
			s.t.Errorf("the metadata is %v", v.Metadata)
		}
	},
	"a key of metadata without a slash is deleted once": func(s *subject) {
		s.create(s.Type)
		s.must(s.Cinder.UpdateMetadata(s.ctx, s.id, map[string]string{"a-node-1f": "b"}))
		s.must(s.Cinder.DeleteMetadata(s.ctx, s.id, "a-node-1f"))
		if err := s.Cinder.DeleteMetadata(s.ctx, s.id, "a-node-1f"); !cinder.IsKind(err, cinder.KindNotFound) {
			s.t.Errorf("after its deletion the error is %v", err)
		}
		v, _ := s.settled()
		if _, kept := v.Metadata["a-node-1f"]; kept || v.Metadata["purpose"] != "contract" {
			s.t.Errorf("the metadata is %v", v.Metadata)
		}
	},
	"the attachments API is offered": func(s *subject) { s.must(s.Cinder.OffersAttachments(s.ctx)) },
	"only to an administrator does a completed attachment show the host of its connector": func(s *subject) {
		s.create(s.Type)
		s.attachTo("node2")
		want := "node2"
		if s.Member {
			want = ""
		}
		if v, _ := s.settled(); len(v.Attachments) != 1 || v.Attachments[0].ID != s.attachment || v.Attachments[0].Host != want {
			s.t.Errorf("the attachments are %+v, want %s of host %q", v.Attachments, s.attachment, want)
		}
	},
	"a volume for several hosts has an attachment for each": func(s *subject) {
		if s.SharedType == "" {
			s.t.Skip("no volume type is known whose volumes several hosts may attach")
		}
		s.create(s.SharedType)
		s.attachTo("node1")
		first := s.attachment
		if v, _ := s.settled(); !v.MultiAttach {
			s.t.Error("the volume is not for several hosts")
		}
		var err error
		s.attachment, _, err = s.Cinder.CreateAttachment(s.ctx, s.id, connectorOf("node2"), false)
		s.must(err)
		s.looks("while the second is made", "attaching, shows 1, lists attached and attaching")
		s.must(s.Cinder.CompleteAttachment(s.ctx, s.attachment))
		s.looks("with two", "in-use, shows 2, lists attached and attached")
		s.must(s.Cinder.DeleteAttachment(s.ctx, first))
		s.looks("with the second", "in-use, shows 1, lists attached")
		s.must(s.Cinder.DeleteAttachment(s.ctx, s.attachment))
		s.looks("without any", "available")
	},
	"an attachment by os-attach has no connection": func(s *subject) {
		s.create(s.Type)
		s.must(s.Cinder.Attach(s.ctx, s.id, "node1", false))
		s.lastAttachment()
		if document, err := s.Cinder.AttachmentDocument(s.ctx, s.attachment); err != nil || document != nil {
			s.t.Errorf("%d bytes of a connection, error %v", len(document), err)
		}
	},
	"only to an administrator does an attachment show its host": func(s *subject) {
		s.create(s.Type)
		s.must(s.Cinder.Attach(s.ctx, s.id, "node1", false))
		want := "node1"
		if s.Member {
			want = ""
		}
		if v, _ := s.settled(); len(v.Attachments) != 1 || v.Attachments[0].Host != want || v.Attachments[0].ServerID != "" {
			s.t.Errorf("the attachments are %+v, want host %q", v.Attachments, want)
		}
	},
	"a volume of which nothing exists has no attachments": func(s *subject) {
		found, err := s.Cinder.Attachments(s.ctx, unknown)
		if err != nil || len(found) > 0 {
			s.t.Errorf("attachments %+v, error %v", found, err)
		}
	},
	"a volume that failed has a reason": func(s *subject) {
		if s.FailingType == "" {
			s.t.Skip("no volume type is known whose volumes end in error")
		}
		s.create(s.FailingType)
		if s.Cinder.FailureReason(s.ctx, s.id) == "" {
			s.t.Error("Cinder gave no reason")
		}
	},
	"the place is known": func(s *subject) {
		if !s.Cinder.Place().IsKnown() {
			s.t.Errorf("the place is %s", s.Cinder.Place())
		}
	},
}

// attachTo attaches the volume to a host and completes that.
func (s *subject) attachTo(host string) {
	s.t.Helper()
	var err error
	s.attachment, _, err = s.Cinder.CreateAttachment(s.ctx, s.id, connectorOf(host), false)
	s.must(err)
	s.must(s.Cinder.CompleteAttachment(s.ctx, s.attachment))
}

// looks fails the test unless the volume's description is the one wanted.
func (s *subject) looks(when, want string) {
	s.t.Helper()
	if got := s.describe(); got != want {
		s.t.Errorf("%s the volume is %q, want %q", when, got, want)
	}
}

// isListed reads all pages. None may contain a volume twice.
func (s *subject) isListed(query cinder.Query) bool {
	s.t.Helper()
	seen := map[string]bool{}
	s.must(s.Cinder.ListVolumes(s.ctx, query, func(page []cinder.Volume) bool {
		if query.PageSize > 0 && len(page) > query.PageSize {
			s.t.Errorf("a page of %d has %d volumes", query.PageSize, len(page))
		}
		if slices.ContainsFunc(page, func(v cinder.Volume) bool { return seen[v.ID] }) {
			s.t.Error("a volume was listed twice")
		}
		for _, v := range page {
			seen[v.ID] = true
		}
		return true
	}))
	return seen[s.id]
}
