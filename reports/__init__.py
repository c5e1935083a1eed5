"""What people read: tables and pages made of finished plans. Nothing here computes a cost."""
